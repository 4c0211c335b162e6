"""What keeps a recall from reading a replica that lacks a committed effect: delivery of watermarks, and a lease."""

from aftermind.freshness.delivery import WatermarkDelivery
from aftermind.freshness.lease import Passed, ReplicaLease

__all__ = ["Passed", "ReplicaLease", "WatermarkDelivery"]
