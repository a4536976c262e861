"""The base of every settings record."""

from pydantic import BaseModel, ConfigDict


class Spec(BaseModel):
    """A frozen record; an unknown key is an error."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)
