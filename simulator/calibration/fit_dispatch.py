def dispatch_sections(): return {}
def dispatch_left_out(): return []
