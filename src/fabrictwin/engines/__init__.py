"""The engines behind the interface of `engines.base.engine`."""
