"""Frontier key: where, for whom and with which block a sequence will publish next."""

from __future__ import annotations

from prefold.identity.domain import Audience
from prefold.tree.node import Node

FrontierKey = tuple[Node, Audience, bytes]
