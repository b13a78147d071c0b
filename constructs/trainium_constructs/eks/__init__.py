"""CDK constructs for training on AWS Trainium with Amazon EKS.

Imported only where used, because their CDK modules load slowly.
"""

from trainium_constructs.eks.cluster import TrainingCluster
from trainium_constructs.eks.contents import ClusterContents, ClusterSettings
from trainium_constructs.eks.identity import PodRole
from trainium_constructs.eks.node_groups import SystemNodeGroup, TrainiumNodeGroup
from trainium_constructs.eks.node_scaler import NodeScaler

__all__ = [
    "ClusterContents",
    "ClusterSettings",
    "NodeScaler",
    "PodRole",
    "SystemNodeGroup",
    "TrainingCluster",
    "TrainiumNodeGroup",
]
