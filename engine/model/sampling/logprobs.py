"""The model's own log-probabilities of the chosen tokens. Knows no sampling parameters."""

from __future__ import annotations

from collections.abc import Sequence as Seq

import torch

from engine.types import TokenLogprob, TokenLogprobs


def logprobs_of(
    logits: torch.Tensor, nums: Seq[int | None], tokens: Seq[int]
) -> list[TokenLogprobs | None]:
    """The log-probabilities of each row's token and of its most probable tokens.

    `logits [num_rows, vocab]` are fp32. Row `i` yields `tokens[i]` and the `nums[i]` most probable
    tokens, best first, equal ones by id; None for a row whose `nums[i]` is None.

    Of the model's distribution, before temperature, penalties and constraints: as vLLM's default
    (`raw_logprobs`) and so comparable between requests. OpenAI's API doesn't say (2026-11).
    """
    answers: list[TokenLogprobs | None] = [None] * len(nums)
    wanted = [i for i, num in enumerate(nums) if num is not None]
    if not wanted:
        return answers
    part = (
        logits if len(wanted) == len(nums) else logits[torch.tensor(wanted, device=logits.device)]
    )
    for i, row in zip(wanted, torch.log_softmax(part, dim=-1), strict=True):
        chosen = TokenLogprob(tokens[i], float(row[tokens[i]]))
        answers[i] = TokenLogprobs(chosen, _best(row, nums[i] or 0))
    return answers


def _best(row: torch.Tensor, num: int) -> tuple[TokenLogprob, ...]:
    """The `num` most probable tokens of a row `[vocab]`."""
    num = min(num, row.shape[0])
    if num == 0:
        return ()
    floor = row.topk(num).values[-1]
    ids = (row >= floor).nonzero().squeeze(-1)
    values, order = torch.sort(row[ids], descending=True, stable=True)
    return tuple(
        TokenLogprob(token_id, value)
        for token_id, value in zip(ids[order[:num]].tolist(), values[:num].tolist(), strict=True)
    )
