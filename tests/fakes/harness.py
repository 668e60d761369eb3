"""An engine of real parts around a runner without torch, and a look for leaks at its end."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from engine.cache.prefix_cache import PrefixCache
from engine.cache.tiers.client import TierClients
from engine.config import EngineConfig
from engine.constrain.grammars import Grammars
from engine.core import Engine, EngineParts, PromptRenderer
from engine.forms import Forms
from engine.messages import Capabilities, FromEngine
from engine.prompt.render import Renderer
from engine.prompt.template import ChatTemplate
from tests.fakes.events import PATIENCE_S, EventLog
from tests.fakes.runner import FakeRunner
from tests.fakes.tokenizer import ByteTokenizer


@dataclass(frozen=True, slots=True)
class Wiring:
    """What may take the place of the harness's own renderer, forms, log and fatal errors, and tiers
    below the device."""

    renderer: PromptRenderer | None = None
    emit: Callable[[FromEngine], None] | None = None
    on_fatal: Callable[[BaseException], None] | None = None
    tiers: TierClients | None = None
    forms: Forms | None = None


class Harness:
    """One engine with its events. `runner` can be told to stop, say something or fail."""

    def __init__(self, runner: FakeRunner, wiring: Wiring, options: dict[str, object]) -> None:
        tokenizer = ByteTokenizer()
        template = ChatTemplate.load("chatml", Path(), tokenizer)
        config = EngineConfig(
            model="fake",
            model_path="/",
            root_secret=b"0123456789abcdef",
            **{"context": 400, "block_size": runner.block_size, "max_step_tokens": 32, **options},  # type: ignore[arg-type]
        )
        self.runner = runner
        self.cache = PrefixCache(
            device=runner,
            num_pages=runner.num_pages,
            page_nbytes=runner.page_nbytes,
            block_size=runner.block_size,
            fingerprint=runner.fingerprint,
            root_secret=config.root_secret,
            tiers=wiring.tiers,
            span_tokens=4 * runner.block_size,
        )
        renderer = wiring.renderer or Renderer(tokenizer, template)
        forms = wiring.forms or Grammars(tokenizer)
        self.log = EventLog()
        self.fatal: list[BaseException] = []
        capabilities = Capabilities(
            tools_first=True, exact=True, runner="fake", dtype="none", device="none"
        )
        parts = EngineParts(
            runner, self.cache, tokenizer, renderer, forms, runner.fingerprint, capabilities
        )
        self.engine = Engine(
            config, parts, wiring.emit or self.log, wiring.on_fatal or self.fatal.append
        )

    def stop(self) -> None:
        """End the engine and look for leaks."""
        self.engine.close()
        assert self.engine.join(PATIENCE_S)
        self.cache.check()
        if self.engine.failure is None:
            gauges = self.cache.stats().gauges
            assert (gauges.num_leases, gauges.num_pinned_pages, gauges.num_reserved_pages) == (
                0,
                0,
                0,
            )
        assert self.runner.is_closed


MakeEngine = Callable[..., Harness]
"""Takes a runner or None, a `Wiring`, and fields of `EngineConfig` as options; the engine is
started."""
