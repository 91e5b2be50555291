"""The public plane: what tenants reach.

Layers, from outside in; each sees only what the one before let through::

    exchange   an id, one log line, errors made into answers
    gate       a key, for every path but /health, known or not
    entry      a ticket of the tenant, for every call
    body       size, time, UTF-8, shape
    routes     fields, then the tenant's other limits, then the engine
"""

from __future__ import annotations

from fastapi import APIRouter, FastAPI, Security
from fastapi.security import HTTPBearer
from starlette.middleware import Middleware

from prefold.engine.async_engine import AsyncEngine
from prefold.server.body import BodyReader
from prefold.server.calls import Desk
from prefold.server.chat import chat_router
from prefold.server.completions import completions_router
from prefold.server.config import ServerConfig
from prefold.server.entry import EntryLayer
from prefold.server.exchange import ExchangeLayer
from prefold.server.faults import install_fault_handlers
from prefold.server.gate import Gate
from prefold.server.health import HEALTH_PATH, health_router
from prefold.server.image_files import ImageFiles
from prefold.server.images_config import ImagesConfig
from prefold.server.json_shape import JsonLimits
from prefold.server.limits import TenantLimits
from prefold.server.models import models_router
from prefold.server.observer import HttpObserver, Plane
from prefold.server.permits import Permits
from prefold.server.remote_images import RemoteImages
from prefold.server.served_model import CurrentModel, ServedModel
from prefold.server.tokenize import TOKENIZE_PATH, tokenize_router
from prefold.server.upload_routes import FILES_PATH, upload_router
from prefold.server.uploads import UploadStore

#: Of the routes whose requests ask for tokens.
TOKEN_PATHS = frozenset({"/v1/completions", "/v1/chat/completions"})


def make_public_app(  # noqa: PLR0913, PLR0917 -- what a plane is made of
    engine: AsyncEngine,
    model: ServedModel,
    permits: Permits,
    limits: TenantLimits,
    config: ServerConfig,
    observer: HttpObserver,
    images: ImagesConfig | None = None,
) -> FastAPI:
    """Return the application of the public plane."""
    images = images or ImagesConfig()
    uploads = UploadStore(images)
    files = ImageFiles(uploads, RemoteImages(images), max_images=images.max_images)
    # Only who can look at images is sent bodies of their size.
    takes_images = model.images.placeholder is not None
    larger = {"/v1/chat/completions", FILES_PATH} if takes_images else set()
    authenticator = permits.authenticator
    desk = Desk(engine, config, observer, permits)
    models = CurrentModel(engine, model)
    app = FastAPI(
        title="Prefold",
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
        middleware=[
            Middleware(
                ExchangeLayer,
                plane=Plane.PUBLIC,
                observer=observer,
                token_paths=TOKEN_PATHS,
            ),
            Middleware(
                Gate,
                authenticate=authenticator.authenticate,
                open_paths=frozenset({HEALTH_PATH}),
                is_local=not authenticator.needs_key,
            ),
            Middleware(
                EntryLayer, limits=limits, paths=TOKEN_PATHS | {TOKENIZE_PATH, FILES_PATH}
            ),
            Middleware(
                BodyReader,
                max_body_bytes=config.max_body_bytes,
                limits=JsonLimits(max_depth=config.max_depth),
                max_bytes_by_path=dict.fromkeys(larger, images.max_media_body_bytes),
            ),
        ],
    )
    install_fault_handlers(app)
    app.include_router(health_router(desk))
    # For the document only: it is the gate that asks for keys.
    bearer = [Security(HTTPBearer(auto_error=False))] if authenticator.needs_key else []
    keyed = APIRouter(dependencies=bearer)
    keyed.include_router(completions_router(desk, models))
    keyed.include_router(chat_router(desk, models, files))
    keyed.include_router(upload_router(uploads))
    keyed.include_router(tokenize_router(desk, models))
    keyed.include_router(models_router(desk, models))
    app.include_router(keyed)
    return app
