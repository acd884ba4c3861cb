"""The handler loop is the SDK's, over any surface: see `client.consumer`."""

from tablecast.client.consumer import Consumer
from tablecast.client.retry import Retry

__all__ = ["Consumer", "Retry"]
