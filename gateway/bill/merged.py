"""Merges the cache reports of several prompts into one, for a request that asks all of them.

Knows no provider.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import msgspec

from engine.types import Boundary, CacheReport, Hit


def merged(reports: Sequence[CacheReport]) -> CacheReport:
    """One report, as if the cached part of each prompt followed those of the prompts before it.

    Counts add up, and a boundary lies past the tokens read exactly where it does in its own prompt.
    The miss is that of the first prompt that has one.
    """
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
