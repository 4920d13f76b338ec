"""A control group with a CPU quota: its limit and its counters, on cgroup v1 and v2."""

import os


class Group:
    def __init__(self, name):
        self.is_v2 = os.path.exists(f"/sys/fs/cgroup/{name}/cpu.max")
        self.path = f"/sys/fs/cgroup/{name}" if self.is_v2 else f"/sys/fs/cgroup/cpu/{name}"

    def write(self, name, value):
        with open(f"{self.path}/{name}", "w") as file:
            file.write(str(value))

    def limit(self, limit):
        """Sets quota, period and burst, as `throttle advise` writes them."""
        if self.is_v2:
            self.write("cpu.max.burst", 0)
            self.write("cpu.max", f"{limit['quota_us']} {limit['period_us']}")
            self.write("cpu.max.burst", limit["burst_us"])
            return
        self.write("cpu.cfs_burst_us", 0)
        self.write("cpu.cfs_quota_us", -1)
        self.write("cpu.cfs_period_us", limit["period_us"])
        self.write("cpu.cfs_quota_us", limit["quota_us"])
        self.write("cpu.cfs_burst_us", limit["burst_us"])

    def periods(self):
        """Periods of the quota so far, and those that were throttled."""
        with open(f"{self.path}/cpu.stat") as file:
            stat = dict(line.split() for line in file)
        return int(stat["nr_periods"]), int(stat["nr_throttled"])

    def pids(self):
        """The processes in it; none if it is gone."""
        try:
            with open(f"{self.path}/cgroup.procs") as file:
                return [int(line) for line in file]
        except FileNotFoundError:
            return []
