from simulator import *
