"""Replication among nodes that are often offline, through an MQTT broker."""
