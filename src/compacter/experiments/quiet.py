"""What a process imports first, so that packages which it imports next have no say."""

from __future__ import annotations

from compacter.extras import silence_extras

silence_extras()
