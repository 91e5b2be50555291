from prefold.cache import NO_CACHE as NO_CACHE
from prefold.cache import READ_WRITE as READ_WRITE
from prefold.cache import Access as Access
from prefold.cache import Approval as Approval
from prefold.cache import ApprovalId as ApprovalId
from prefold.cache import ApprovalTerms as ApprovalTerms
from prefold.cache import ByAge as ByAge
from prefold.cache import ByApproved as ByApproved
from prefold.cache import ByDomain as ByDomain
from prefold.cache import ByField as ByField
from prefold.cache import ByFingerprint as ByFingerprint
from prefold.cache import ByPrefix as ByPrefix
from prefold.cache import Everything as Everything
from prefold.cache import Lookup as Lookup
from prefold.cache import MissKind as MissKind
from prefold.cache import MissReason as MissReason
from prefold.cache import Receipt as Receipt
from prefold.engine.config import RequestOptions as RequestOptions
from prefold.engine.engine import Engine as Engine
from prefold.engine.mixed_prompt import PromptEmbeds as PromptEmbeds
from prefold.engine.outbox import NewToken as NewToken
from prefold.engine.prompt_mixer import ImagePrompt as ImagePrompt
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
    "Approval",
    "ApprovalId",
    "ApprovalTerms",
    "ByAge",
    "ByApproved",
    "ByDomain",
    "ByField",
    "ByFingerprint",
    "ByPrefix",
    "Domain",
    "Engine",
    "Everything",
    "FinishReason",
    "ImagePrompt",
    "Lookup",
    "MissKind",
    "MissReason",
    "NewToken",
    "PrefoldError",
    "PromptEmbeds",
    "Receipt",
    "RequestId",
    "RequestOptions",
    "RequestOutput",
    "SamplingParams",
    "Timing",
    "Usage",
]
