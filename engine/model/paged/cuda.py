"""CUDA beside tensors: recorded graphs, a queue of copies, pinned memory.

Everything here needs a device to run.

The rest of the paged path sees this through the protocols of `decode_graphs` and `staging`, and is
tested without.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch.nn.attention import varlen

from engine.model.paged.attention import VarlenAttention
from engine.model.paged.decode_graphs import Recorded, Recorder
from engine.model.paged.staging import Copies, CopyEvent


@dataclass(frozen=True, slots=True)
class DeviceFeatures:
    """The features of a device that the paged forward pass uses, None where it has none; and the
    memory it has of its own."""

    attend: VarlenAttention | None
    recorder: Recorder | None
    copies: Copies | None
    memory_nbytes: int = 0


def cuda_features(device: torch.device) -> DeviceFeatures:
    """All features, of a CUDA device."""
    _, memory_nbytes = torch.cuda.mem_get_info(device)
    return DeviceFeatures(
        getattr(varlen, "varlen_attn", None),
        CudaRecorder(device),
        CudaCopies(device),
        memory_nbytes,
    )


class CudaRecorder:
    """Implements `Recorder` by CUDA graphs that share one pool of memory."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._memory = torch.cuda.graph_pool_handle()
        self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]

    def record(self, work: Callable[[], torch.Tensor]) -> Recorded:
        """See `Recorder`."""
        compute = torch.cuda.current_stream(self._device)
        self._stream.wait_stream(compute)
        with torch.cuda.stream(self._stream):
            work()  # what libraries allocate and choose the first time must not be recorded
        compute.wait_stream(self._stream)
        graph = torch.cuda.CUDAGraph()
        # Other threads may allocate meanwhile.
        with torch.cuda.graph(
            graph, pool=self._memory, stream=self._stream, capture_error_mode="thread_local"
        ):
            output = work()
        return _RecordedGraph(graph, output)

    def free_nbytes(self) -> int:
        """See `Recorder`: what the driver has and what torch keeps for later."""
        free, _ = torch.cuda.mem_get_info(self._device)
        return (
            free
            + torch.cuda.memory_reserved(self._device)
            - torch.cuda.memory_allocated(self._device)
        )


class _RecordedGraph:
    """Implements `Recorded`."""

    def __init__(self, graph: torch.cuda.CUDAGraph, output: torch.Tensor) -> None:
        self.output = output
        self._graph = graph

    def replay(self) -> None:
        self._graph.replay()


class CudaCopies:
    """Implements `Copies` by a stream."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]

    def pinned(self, nbytes: int) -> torch.Tensor:
        """See `Copies`."""
        return torch.empty(nbytes, dtype=torch.uint8, pin_memory=True)

    def launch(self, work: Callable[[], None]) -> CopyEvent:
        """See `Copies`."""
        self._stream.wait_stream(torch.cuda.current_stream(self._device))
        with torch.cuda.stream(self._stream):
            work()
        return _CudaEvent(self._device, self._stream.record_event())


class _CudaEvent:
    """Implements `CopyEvent`."""

    def __init__(self, device: torch.device, event: torch.cuda.Event) -> None:
        self._device = device
        self._event = event

    def wait(self) -> None:
        self._event.synchronize()

    def hold_compute(self) -> None:
        torch.cuda.current_stream(self._device).wait_event(self._event)

    def is_done(self) -> bool:
        return bool(self._event.query())  # type: ignore[no-untyped-call]
