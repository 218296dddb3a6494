package executor

// Containment is what this machine has, beside the keeper, to hold the processes of a command together; see Detect.
type Containment struct {
	// Cgroup is the folder below which each command gets a cgroup of its own, "" for none.
	Cgroup string
	// Memory: those cgroups can limit memory. Where they cannot, a limit holds for the address space of each process.
	Memory bool
}
