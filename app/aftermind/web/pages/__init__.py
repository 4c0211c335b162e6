"""The screens: one file each, put together by `routes.install`."""
