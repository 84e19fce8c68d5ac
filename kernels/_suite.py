def work(*a): pass
def run_suite(*a): pass
