"""Verification of answers: math-verify in processes that may be killed, behind our own extraction and exact path."""

from scalerl.verify.pool import Verifier
from scalerl.verify.verdict import Fault, Outcome, Verdict, VerifierError

__all__ = ["Fault", "Outcome", "Verdict", "Verifier", "VerifierError"]
