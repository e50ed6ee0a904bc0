"""What the tests of the BIE client share."""


def pytest_configure(config):
    # The BCE SDK reads the time the old way; nothing here can change that.
    config.addinivalue_line("filterwarnings", "ignore:datetime.datetime.utcnow:DeprecationWarning:baidubce")
