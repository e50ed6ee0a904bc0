"""Doing a step, wherever that is: which method does which, said once."""

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
    """Does what steps say."""

    def run(self, inputs: StepInputs) -> Result:
        """Do a step; returns what is worth knowing about what it made.

        Raises:
            InputError: the inputs could not work.
            Conflict: it is there, and the action is create.
            NotFound: it is not there, and the action is patch; or something it needs is missing.
            Rejected: it failed; says why.
            DeadlineExceeded: it took too long; it goes on, and the step may be run again.
        """
        doing: Mapping[type, Callable[[Any], Result]] = {
            DatasetInputs: self._dataset,
            TrainingInputs: self._training,
            ModelHubInputs: self._modelhub,
            ServingInputs: self._serving,
            VisualDLInputs: self._visualdl,
        }
        return doing[type(inputs)](inputs)

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
