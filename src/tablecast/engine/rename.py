"""Commands that change what a topic is called. Its id stays, and with it its messages, groups and sources.

What refers to a topic by name follows: the `dead_letter` of other topics. A pipeline does not: its progress is that of a
query over topics of these names.
"""

from __future__ import annotations

from dataclasses import dataclass

from tablecast.codec import catalog as records
from tablecast.codec.catalog import encode_record
from tablecast.engine.ddl import Alone, altered_topic, check_names, check_topic, in_use
from tablecast.engine.decision import Decision, Record, View
from tablecast.model.topic import Topic
from tablecast.storage.base import Family


@dataclass(slots=True)
class RenameTopic(Alone):
    topic: str
    namespace: str
    name: str

    def decide(self, view: View) -> Decision:
        topic = view.catalog.topic(self.topic)
        view.catalog.namespace(self.namespace)
        used = view.catalog.pipelines_using(topic=topic.full_name)
        if used:
            raise in_use(f"topic {topic.full_name}", used)
        altered = altered_topic(view, topic, namespace=self.namespace, name=self.name)
        check_names(view.catalog, altered, altered.full_name)
        return _renamed(view, topic, altered)


@dataclass(slots=True)
class SetAlias(Alone):
    """`alias` is text, as `Topic.alias`; None takes it away."""

    topic: str
    alias: str | None

    def decide(self, view: View) -> Decision:
        topic = view.catalog.topic(self.topic)
        altered = altered_topic(view, topic, alias=self.alias)
        check_names(view.catalog, altered, altered.alias_name)
        return _renamed(view, topic, altered)


def _renamed(view: View, topic: Topic, altered: Topic) -> Decision:
    check_topic(altered)
    catalog = view.catalog
    others = [other for other in catalog.topics.values() if other is not topic]
    letters_from = [other for other in others if catalog.topic_ids.get(other.dead_letter or "") == topic.topic_id]
    changed = [altered, *(altered_topic(view, other, dead_letter=altered.full_name) for other in letters_from)]
    for each in changed:
        catalog = catalog.with_topic(each)
    return Decision(True, records=[_saved(each) for each in changed], catalog=catalog)


def _saved(topic: Topic) -> Record:
    return Family.META, records.topic_key(topic.topic_id), encode_record(topic)
