"""Views of what single families of methods record, one file each; a new one is one more name in `VIEWS`."""

from __future__ import annotations

from fedfi.report.view import View
from fedfi.report.views.audit import audit
from fedfi.report.views.encryption import encryption
from fedfi.report.views.guidance import guidance
from fedfi.report.views.merging import merging
from fedfi.report.views.other import other
from fedfi.report.views.submodels import submodels

VIEWS: tuple[View, ...] = (submodels, merging, encryption, guidance, audit)

__all__ = ["VIEWS", "other"]
