"""Explanations of the reasons that Kubernetes and Volcano give for waiting and ended jobs."""

from __future__ import annotations

from jobs.job import Explanation

# Pod messages: kubernetes/kubernetes, pkg/kubelet (eviction, active_deadline, images, cm) and
# pkg/scheduler/framework; gang messages: volcano-sh/volcano 1.15.1, pkg/scheduler/plugins
# (capacity, proportion, overcommit). The first matching pattern wins.
CLUSTER_REASONS: tuple[Explanation, ...] = (
    Explanation(
        pattern="OOMKilled*",
        meaning="the container used more memory than its limit and was killed",
        remedy="reduce the memory use of the workload; /dev/shm counts as memory",
    ),
    Explanation(
        pattern="DeadlineExceeded*",
        meaning="the launcher did not enforce its time limit, so the kubelet terminated the pod",
        remedy="none if an attempt is left, which resumes from the newest checkpoint; otherwise "
        "submit the run again",
    ),
    Explanation(
        pattern="Evicted*",
        meaning="the kubelet evicted the pod, because its node ran low on memory or disk space",
        remedy="none: Volcano restarts all pods if an attempt is left",
    ),
    Explanation(
        pattern="UnexpectedAdmissionError*",
        meaning="the kubelet could not assign the pod its devices",
        remedy=(
            "check the Neuron and EFA device plugins on that node (kubectl -n kube-system get pods "
            "-o wide); they may just have been restarted"
        ),
    ),
    Explanation(
        pattern="*queue resource quota insufficient*",
        meaning="the gang exceeds the free capacity of the queue, or of the cluster",
        remedy=(
            "wait for the runs ahead, or deploy with a larger -c trainium:max_nodes, which also "
            "enlarges the queue, and add nodes with `python -m jobs scale`"
        ),
    ),
    Explanation(
        pattern="*resource in cluster is overused*",
        meaning="the cluster's nodes have no capacity for the gang",
        remedy="wait for the runs that use them, or add nodes with `python -m jobs scale`",
    ),
    Explanation(
        pattern="*exceeded quota*",
        meaning="the namespace's ResourceQuota does not allow the pods",
        remedy=(
            "check with: kubectl describe resourcequota; deploy with a larger -c trainium:max_nodes"
        ),
    ),
    Explanation(
        pattern="*error looking up service account*",
        meaning="the namespace has no service account for the workload",
        remedy="deploy again with `cdk deploy --all`, from the checkout that you submit from",
    ),
    Explanation(
        pattern="*violates PodSecurity*",
        meaning="the namespace's Pod Security standard does not allow the pods",
        remedy="deploy again with `cdk deploy --all`, so that namespace and CLI match",
    ),
    Explanation(
        pattern="*persistentvolumeclaim*not found*",
        meaning="the namespace has no PersistentVolumeClaim for the file system",
        remedy="deploy again with `cdk deploy --all`",
    ),
    Explanation(
        pattern="*MountVolume*",
        meaning="the node cannot mount the file system",
        remedy=(
            "check the FSx CSI driver on that node (kubectl -n kube-system get pods -o wide), that "
            "the file system is AVAILABLE, and that its security group allows the nodes"
        ),
    ),
    Explanation(
        pattern="*Insufficient aws.amazon.com/neuron*",
        meaning="no node has as many free Neuron devices as a pod needs",
        remedy=(
            "wait for the run that uses them, or add nodes with `python -m jobs scale`; on an "
            "idle node, check Neuron's device plugin (kubectl -n kube-system get ds)"
        ),
    ),
    Explanation(
        pattern="*Insufficient vpc.amazonaws.com/efa*",
        meaning="no node offers as many EFA interfaces as a pod needs",
        remedy="check the EFA device plugin (kubectl -n kube-system get ds)",
    ),
    Explanation(
        pattern="*ImagePull*",
        meaning="the node could not pull the image",
        remedy=(
            "check that the subnet can reach ECR (NAT or endpoints) and that the image still "
            "exists; `cdk deploy --all` pushes it again"
        ),
    ),
    Explanation(
        pattern="*pull* image*",
        meaning="the node could not pull the image",
        remedy=(
            "check that the subnet can reach ECR (NAT or endpoints) and that the image still "
            "exists; `cdk deploy --all` pushes it again"
        ),
    ),
    Explanation(
        pattern="no attempts left",
        meaning="the last attempt failed too, and its pods were deleted",
        remedy="read the status below and the log of the attempt (`python -m jobs logs`)",
    ),
    Explanation(
        pattern="Aborted:*",
        meaning="the job was terminated without `jobs stop`",
        remedy="submit the run again to resume it",
    ),
)
