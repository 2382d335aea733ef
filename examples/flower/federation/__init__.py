"""The federation's app.

A method of your own is a module of this package that registers it; import it in `client` and in
`server`, and name it in the run configuration.
"""
