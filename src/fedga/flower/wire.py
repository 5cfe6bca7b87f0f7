"""What crosses the wire: the records of every message, written and read in one place.

To a client:  ``arrays`` the model by name (as ``state_dict``), ``received`` what the algorithm declares as downloads,
``config`` round, settings and who is meant, ``pixels`` how samples become inputs (in a federation of real sites).
From a client: ``arrays`` its model, ``report`` what the algorithm declares as uploads, ``metrics`` its sample count.
"""

import re
from collections.abc import Mapping

from flwr.app import ArrayRecord, ConfigRecord, Message, MessageType, MetricRecord, RecordDict
from torch import Tensor

from fedga.errors import FedGAError, quoted

ARRAYS, RECEIVED, PIXELS, CONFIG = "arrays", "received", "pixels", "config"
REPORT, METRICS, IDENTITY = "report", "metrics", "identity"

TRAIN, EVALUATE = MessageType.TRAIN, MessageType.EVALUATE
INTRODUCE, SURVEY, LOSSES, FINISH = (
    f"{MessageType.QUERY}.{name}" for name in ("introduce", "survey", "losses", "finish")
)

_WRAPPED = re.compile(r"<class '[\w.]+'>:<'(.*)'>", re.DOTALL)

LARGEST_NUMBER = 10**9  # of a round or a client
LONGEST_REASON = 400  # letters that are shown of it

EXAMPLES = "num-examples"  # the name Flower's own strategies give to the weight of a client


def to_record(tensors: Mapping[str, Tensor]) -> ArrayRecord:
    """Named tensors as they travel; one without axes goes as one with a single entry."""
    return ArrayRecord({name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()})


def config_of(message: Message) -> ConfigRecord:
    return message.content.config_records.get(CONFIG, ConfigRecord())


def whole(config: ConfigRecord, name: str) -> int:
    """A whole number that every message of ours has."""
    value = config.get(name)
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < LARGEST_NUMBER:
        raise FedGAError(f"the server says {name} = {quoted(value)}, where a whole number from 0 on belongs")
    return value


def metrics_of(message: Message) -> MetricRecord:
    return message.content.metric_records.get(METRICS, MetricRecord())


def reason(reply: Message) -> str:
    """Why a client failed: its own sentence in quotation marks, without the class that Flower wraps it in."""
    told = (reply.error.reason or "").strip()
    wrapped = _WRAPPED.fullmatch(told)
    lines = [line.strip() for line in (wrapped[1] if wrapped else told).splitlines() if line.strip()]
    return quoted(lines[-1], LONGEST_REASON) if lines else f"error {reply.error.code}"


def reply(message: Message, **records: ArrayRecord | MetricRecord | ConfigRecord | None) -> Message:
    """An answer with the records that are there; no empty ones."""
    return Message(RecordDict({name: record for name, record in records.items() if record}), reply_to=message)
