"""Events as another program, or a damaged disk, might have written them."""

from hypothesis import strategies as st
from logs import (
    done_event,
    eval_event,
    fault_event,
    phase_event,
    resume_event,
    run_event,
    sample_event,
    update_event,
)

from scalerl.events import Event

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.sampled_from([10**400, -1, 2**63, 1e308])
    | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=6,
)  # fmt: skip
WHOLE = {
    each["kind"]: each
    for each in (
        run_event(), update_event(3), eval_event(4.0, 0.5), sample_event(3), fault_event(3),
        phase_event("trainer", "update", 0.0, 9.0), done_event(3), resume_event(1, 1),
        {**update_event(2), "kind": "warning"},
    )
}  # fmt: skip


@st.composite
def spoiled(draw: st.DrawFn) -> Event:
    """An event of any kind with some fields missing and others of any value."""
    event = dict(draw(st.sampled_from(list(WHOLE.values()))))
    for name in draw(st.lists(st.sampled_from(sorted(event.keys() - {"kind"})), max_size=4)):
        if draw(st.booleans()):
            event.pop(name, None)
        else:
            event[name] = draw(JSON)
    return event
