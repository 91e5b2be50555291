from prefold.cache import NO_CACHE as NO_CACHE
from prefold.cache import READ_WRITE as READ_WRITE
from prefold.cache import Access as Access
from prefold.cache import Lookup as Lookup
from prefold.cache import MissKind as MissKind
from prefold.cache import MissReason as MissReason
from prefold.engine.config import RequestOptions as RequestOptions
from prefold.engine.engine import Engine as Engine
from prefold.engine.outbox import NewToken as NewToken
from prefold.engine.request import FinishReason as FinishReason
from prefold.engine.request import RequestId as RequestId
from prefold.engine.request import RequestOutput as RequestOutput
from prefold.engine.request import SamplingParams as SamplingParams
from prefold.engine.request import Timing as Timing
from prefold.engine.request import Usage as Usage
from prefold.errors import PrefoldError as PrefoldError
from prefold.identity.domain import Domain as Domain

__all__ = [
    "NO_CACHE",
    "READ_WRITE",
    "Access",
    "Domain",
    "Engine",
    "FinishReason",
    "Lookup",
    "MissKind",
    "MissReason",
    "NewToken",
    "PrefoldError",
    "RequestId",
    "RequestOptions",
    "RequestOutput",
    "SamplingParams",
    "Timing",
    "Usage",
]
