"""Every number of gossip in one place. The sizes and times of the mesh are those that the specification proposes."""

from __future__ import annotations

from dataclasses import dataclass

from ..errors import BadInput


@dataclass(frozen=True, slots=True)
class Params:
    """Times are seconds; ``ticks`` are heartbeats."""

    # The mesh: peers that get every message of a topic at once.
    mesh: int = 6
    mesh_low: int = 5
    mesh_high: int = 12
    mesh_best: int = 4
    """Of a mesh that is too large, how many stay for their score; the others stay by chance."""
    mesh_dialled: int = 2
    """How many of a mesh we have dialled ourselves: nobody can surround us by coming in numbers."""
    mesh_eager: int = 2
    """Up to this size a mesh takes whoever comes to a topic at once; beyond it heartbeats do."""
    heartbeat_s: float = 1.0
    fanout_s: float = 60.0
    """How long we remember whom we published to on a topic that we are not subscribed to."""
    flood_publish: bool = True
    """Our own messages go to everybody on the topic, not only to the mesh."""
    prune_backoff_s: float = 60.0
    """How long after a prune nobody grafts again."""
    leave_backoff_s: float = 10.0
    """The same after we unsubscribed."""
    backoff_max_s: float = 3_600.0
    """The longest that another may ask for."""
    backoff_slack_s: float = 1.0
    graft_flood_s: float = 10.0
    """Who grafts so soon after a prune is punished twice."""
    opportunistic_ticks: int = 60
    opportunistic_peers: int = 2
    opportunistic_score: float = 1.0
    """Below this median score of a mesh, better peers are added to it."""

    # Gossip: ids of recent messages, told to some others.
    gossip_lazy: int = 6
    gossip_factor: float = 0.25
    history_ticks: int = 5
    """How long messages are kept for those who ask."""
    history_bytes_max: int = 33_554_432
    """Of all those messages; beyond it the oldest go first."""
    history_gossip: int = 3
    """Of those, how many are told of."""
    retransmissions: int = 3
    """How often one peer gets the same message for asking."""
    ihave_ids_max: int = 5_000
    """Ids asked for after what one peer told of between two heartbeats."""
    ihave_frames_max: int = 10
    promise_s: float = 3.0
    """How long a peer may take to send what it told of and was asked for."""
    seen_s: float = 120.0
    seen_max: int = 65_536

    # Frames.
    frame_bytes_max: int = 1_048_576
    fields_max: int = 20_000
    """Fields in one frame, over everything in it."""
    message_bytes_max: int = 1_000_000
    """Of one message's data."""
    topic_bytes_max: int = 256
    id_bytes_max: int = 128
    topics_per_peer_max: int = 256
    topics_max: int = 1_024
    """That we subscribe to or publish on."""
    queue_bytes_max: int = 4_194_304
    """What waits for one peer; beyond it, frames are dropped and counted."""
    queue_frames_max: int = 1_024
    queues_bytes_max: int = 67_108_864
    """What waits for all peers."""
    subscription_max: int = 1_024
    """Messages that wait for one subscriber; beyond it they are dropped and counted."""
    subscription_bytes_max: int = 16_777_216

    # Scores: what a peer is worth to us.
    score_time_weight: float = 0.01
    score_time_cap_s: float = 600.0
    score_first_weight: float = 0.5
    score_first_cap: float = 20.0
    score_first_decay: float = 0.98
    """Each heartbeat."""
    score_invalid_weight: float = -20.0
    """Times the square of how many invalid messages came."""
    score_invalid_decay: float = 0.99
    score_behaviour_weight: float = -10.0
    """Times the square of how many offences there were, beyond those that are overlooked."""
    score_behaviour_overlooked: float = 1.0
    score_behaviour_decay: float = 0.99
    score_forget_s: float = 3_600.0
    """How long the bad score of a peer that left is remembered."""
    score_forget_max: int = 4_096
    gossip_threshold: float = -10.0
    """Below it, no gossip goes to or comes from a peer."""
    publish_threshold: float = -50.0
    """Below it, our own messages do not go to it."""
    graylist_threshold: float = -80.0
    """Below it, nothing that it sends is looked at."""

    def __post_init__(self) -> None:
        if not 0 < self.mesh_low <= self.mesh <= self.mesh_high:
            raise BadInput("a mesh needs 0 < mesh_low <= mesh <= mesh_high")
        if self.heartbeat_s <= 0 or self.frame_bytes_max < self.message_bytes_max + 1_024:
            raise BadInput("heartbeat_s is greater than 0, and a frame holds a message of message_bytes_max and more")
        if not self.graylist_threshold <= self.publish_threshold <= self.gossip_threshold <= 0:
            raise BadInput("thresholds of scores need graylist <= publish <= gossip <= 0")
