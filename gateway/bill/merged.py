"""The cache reports of several prompts as one: what a request of all of them is told and billed.
Knows no provider."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import msgspec

from engine.types import Boundary, CacheReport, Hit


def merged(reports: Sequence[CacheReport]) -> CacheReport:
    """As if what is cached of each prompt stood behind what is cached of those before it, so that
    counts add up and a boundary lies past what was read exactly where some boundary of its prompt
    does. The miss is the first there is."""
    if len(reports) == 1:
        return reports[0]
    boundaries: list[Boundary] = []
    hit: Hit | None = None
    shift, tiers = 0, Counter[str]()
    for report in reports:
        boundaries += [
            msgspec.structs.replace(each, offset=shift + each.offset) for each in report.boundaries
        ]
        if report.hit is not None:
            hit = msgspec.structs.replace(report.hit, offset=shift + report.hit.offset)
        tiers.update(report.tiers)
        shift += max(
            [report.hit.offset if report.hit else 0, *(each.offset for each in report.boundaries)]
        )
    return CacheReport(
        num_prompt=sum(report.num_prompt for report in reports),
        skipped=sum(report.skipped for report in reports),
        hit=hit,
        boundaries=tuple(boundaries),
        tiers=dict(tiers),
        miss=next((report.miss for report in reports if report.miss is not None), None),
        broken_tokens=sum(report.broken_tokens for report in reports),
        shared=sum(report.shared for report in reports),
    )
