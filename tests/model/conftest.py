"""Fixtures of the model tests."""

from tests.model.flash_reference import flash_reference_fixture


__all__ = ["flash_reference_fixture"]
