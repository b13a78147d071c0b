"""The reasons that Kubernetes and Volcano give for a job that waits or has ended."""

from __future__ import annotations

from jobs.job import Explanation

# Pod messages: kubernetes/kubernetes, pkg/kubelet (eviction, active_deadline, images, cm) and
# pkg/scheduler/framework; gang messages: volcano-sh/volcano 1.15.1, pkg/scheduler/plugins
# (capacity, proportion, overcommit). The first matching pattern wins.
CLUSTER_REASONS: tuple[Explanation, ...] = (
    Explanation(
        pattern="OOMKilled*",
        meaning="the container used more memory than its limit and was killed",
        remedy="lower what the workload keeps in memory; /dev/shm counts as memory too",
    ),
    Explanation(
        pattern="DeadlineExceeded*",
        meaning="the launcher did not keep its time limit, and the kubelet ended the pod",
        remedy="another attempt goes on from the newest checkpoint while there is one left",
    ),
    Explanation(
        pattern="Evicted*",
        meaning="the kubelet took the pod off its node, which ran short of memory or disk",
        remedy="nothing to do: Volcano starts all pods again while there is an attempt left",
    ),
    Explanation(
        pattern="UnexpectedAdmissionError*",
        meaning="the kubelet could not give the pod its devices",
        remedy=(
            "look at Neuron's and EFA's device plugins on that node (kubectl -n kube-system get "
            "pods -o wide); they may just have been restarted"
        ),
    ),
    Explanation(
        pattern="*queue resource quota insufficient*",
        meaning="the gang does not fit into what is left of the queue, or of the cluster",
        remedy=(
            "wait for the runs that are ahead, or deploy with a larger -c trainium:max_nodes, "
            "which the queue follows, and get nodes with `python -m jobs scale`"
        ),
    ),
    Explanation(
        pattern="*resource in cluster is overused*",
        meaning="the cluster's nodes have no room for the gang",
        remedy="wait for the runs that have them, or get more nodes with `python -m jobs scale`",
    ),
    Explanation(
        pattern="*exceeded quota*",
        meaning="the namespace's ResourceQuota does not allow the pods",
        remedy="compare with: kubectl describe resourcequota; a larger -c trainium:max_nodes",
    ),
    Explanation(
        pattern="*error looking up service account*",
        meaning="the namespace has no service account for the workload",
        remedy="deploy again with `cdk deploy --all`, from the checkout that submits",
    ),
    Explanation(
        pattern="*violates PodSecurity*",
        meaning="the namespace's Pod Security standard does not allow the pods",
        remedy="deploy again with `cdk deploy --all`, so that namespace and CLI agree",
    ),
    Explanation(
        pattern="*persistentvolumeclaim*not found*",
        meaning="there is no claim of the file system in the namespace",
        remedy="deploy again with `cdk deploy --all`",
    ),
    Explanation(
        pattern="*MountVolume*",
        meaning="the node cannot mount the file system",
        remedy=(
            "look at the FSx driver on that node (kubectl -n kube-system get pods -o wide), and "
            "whether the file system is AVAILABLE and its security group admits the nodes"
        ),
    ),
    Explanation(
        pattern="*Insufficient aws.amazon.com/neuron*",
        meaning="no node has as many free Neuron devices as a pod needs",
        remedy=(
            "wait for the run that has them, or get more nodes with `python -m jobs scale`; on a "
            "node that nobody uses, look at Neuron's device plugin (kubectl -n kube-system get ds)"
        ),
    ),
    Explanation(
        pattern="*Insufficient vpc.amazonaws.com/efa*",
        meaning="no node offers as many EFA interfaces as a pod needs",
        remedy="look at the EFA device plugin (kubectl -n kube-system get ds)",
    ),
    Explanation(
        pattern="*ImagePull*",
        meaning="the node could not fetch the image",
        remedy=(
            "check that the subnet reaches ECR (NAT or endpoints) and that the image still exists; "
            "`cdk deploy --all` pushes it again"
        ),
    ),
    Explanation(
        pattern="*pull* image*",
        meaning="the node could not fetch the image",
        remedy=(
            "check that the subnet reaches ECR (NAT or endpoints) and that the image still exists; "
            "`cdk deploy --all` pushes it again"
        ),
    ),
    Explanation(
        pattern="no attempts left",
        meaning="the last attempt failed as those before it, and its pods are gone",
        remedy="read the status below and the log of the attempt (`submit --follow` keeps it)",
    ),
    Explanation(
        pattern="Aborted:*",
        meaning="somebody ended the job without `jobs stop`",
        remedy="submit the run again to resume it",
    ),
)
