"""The interface for running steps: one method per step, on a cluster or on this machine."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Any

from cloudedge.pipeline._inputs import (
    DatasetInputs,
    ModelHubInputs,
    ServingInputs,
    StepInputs,
    TrainingInputs,
    VisualDLInputs,
)

__all__ = ["Result", "Steps"]

Result = dict[str, Any]


class Steps(ABC):
    """Runs steps."""

    def run(self, inputs: StepInputs) -> Result:
        """Run a step; return the facts about the objects it made.

        Raises:
            InputError: the inputs could not work.
            Conflict: the object exists, and the action is create.
            NotFound: the object does not exist, and the action is patch; or something the step needs is missing.
            Rejected: the step failed; the message says why.
            DeadlineExceeded: the step took too long; its objects go on, and it may be repeated.
        """
        methods: Mapping[type, Callable[[Any], Result]] = {
            DatasetInputs: self._dataset,
            TrainingInputs: self._training,
            ModelHubInputs: self._modelhub,
            ServingInputs: self._serving,
            VisualDLInputs: self._visualdl,
        }
        return methods[type(inputs)](inputs)

    @abstractmethod
    def _dataset(self, inputs: DatasetInputs) -> Result: ...

    @abstractmethod
    def _training(self, inputs: TrainingInputs) -> Result: ...

    @abstractmethod
    def _modelhub(self, inputs: ModelHubInputs) -> Result: ...

    @abstractmethod
    def _serving(self, inputs: ServingInputs) -> Result: ...

    @abstractmethod
    def _visualdl(self, inputs: VisualDLInputs) -> Result: ...
