"""What keeps a recall from reading a replica that lacks a committed effect: delivery of watermarks, and a lease."""

from aftermind.freshness.read_your_writes_commit import EffectCommitter
from aftermind.freshness.replica_read_lease import Passed, ReplicaLease
from aftermind.freshness.watermark_redelivery import WatermarkDelivery

__all__ = ["EffectCommitter", "Passed", "ReplicaLease", "WatermarkDelivery"]
