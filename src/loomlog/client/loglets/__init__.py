"""The protocols as clients use them: contract.py, registry.py and one package each."""
