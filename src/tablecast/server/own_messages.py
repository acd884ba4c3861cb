"""Consuming as the role `user`, where the settings allow it: only messages of the user's own rows.

A group's position is shared by its consumers, so that a user's read would take messages from others: groups need the
role service. A stateless read is filtered. It reads one partition, so that `next_offset` always says where to go on,
also past messages of others.
"""

from __future__ import annotations

import asyncio

from tablecast.errors import InvalidRequest
from tablecast.model.message import Consumed
from tablecast.model.names import spelled
from tablecast.model.position import Start, StartKind
from tablecast.model.schema import Actor, Role
from tablecast.model.topic import Topic
from tablecast.server.call import Call
from tablecast.sql.plan_topic import ConsumeRequest, waited
from tablecast.sql.waiting import Ending


def is_limited_to_own(call: Call) -> bool:
    return call.who.role is Role.USER and call.services.settings.allow_user_role_consume


async def consume_own(
    call: Call,
    topic: Topic,
    partition: int | None,
    start: Start | None,
    limit: int,
    timeout_seconds: float,
    ending: Ending,
) -> Consumed:
    """Waits on until a message is the user's own, or the time is over."""
    user = call.who
    partition = _only_partition(topic, partition)
    reader = await call.services.sessions.get(Actor(user.user_id, Role.SERVICE), topic.namespace)
    loop = asyncio.get_running_loop()
    began = loop.time()
    until = began + timeout_seconds
    while True:
        left = max(0.0, until - loop.time())
        asked = ConsumeRequest(start=start, partition=partition, limit=limit, timeout_seconds=left)
        found = (await reader.consume_told(spelled(topic.full_name), asked, ending=ending)).consumed
        own = [message for message in found.messages if message.user_id == user.user_id]
        if own or not found.messages or not left or call.services.lifecycle.draining:
            mine = Consumed(own, found.next_offset, found.has_more, next_offsets=found.next_offsets)
            return waited(mine, loop.time() - began) if timeout_seconds else mine
        assert found.next_offset is not None, "one partition was read"
        start = Start(StartKind.OFFSET, found.next_offset)


def _only_partition(topic: Topic, partition: int | None) -> int:
    if partition is None and topic.partitions > 1:
        raise InvalidRequest(
            f"{topic.full_name} has {topic.partitions} partitions: the role user reads one at a time, give partition_id",
            partitions=topic.partitions,
        )
    return partition or 0
