package torture

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"time"
)

// The groups of faults. A run can be restricted to some of them.
const (
	groupKill      = "kill" // of the daemon, by SIGKILL
	groupCut       = "cut"  // of the power of the disk of the tier
	groupWriteBack = "writeback"
	groupFlip      = "flip"
	groupTier      = "tier"
	groupSource    = "source"
	groupClock     = "clock"
	groupLimits    = "limits"
	groupPlant     = "plant"
)

// Groups lists the groups of faults.
var Groups = []string{groupKill, groupCut, groupWriteBack, groupFlip, groupTier, groupSource, groupClock, groupLimits, groupPlant}

// An Event is one fault, or another step of a cycle.
type Event struct {
	Group string
	Name  string        // of the kind of fault, within the group
	Wait  time.Duration // before the event
	For   time.Duration // how long the fault lasts, if it does
	Seed  uint64        // of the choices that the event makes
}

// String returns the name by which events are counted.
func (e Event) String() string {
	if e.Name == "" {
		return e.Group
	}
	if e.Group == "" {
		return e.Name
	}
	return e.Group + ": " + e.Name
}

// A Cycle is the life of one daemon, and what happens before it is started.
type Cycle struct {
	Number int
	Mode   string // of the mount
	Files  int    // RLIMIT_NOFILE of the daemon; 0 is that of this process
	Memory string // GOMEMLIMIT of the daemon; "" is none
	Denied bool   // the daemon has no capability to read what permissions deny
	Fresh  bool   // the disk is formatted first
	Odd    string // the kind of file system that it is formatted with; "" is the usual one
	Size   int    // RLIMIT_FSIZE of the daemon, in KiB; 0 is none

	Threads int // pids.max of the control group of the daemon; 0 is none
	Down    []Event
	Up      []Event
	End     Event // kill, cut or umount
}

// The kinds of faults of each group, which a running daemon sees.
var (
	tierFaults = []string{
		"memory removed", "memory full", "memory read-only", "disk removed", "disk full", "disk read-only",
		"disk renamed", "disk chowned", "disk hangs", "disk read errors", "disk slow",
	}
	sourceFaults = []string{
		"replaced", "replaced", "rewritten in place", "rewritten in place", "missing", "folder renamed",
		"folder exchanged", "access withdrawn", "access withdrawn", "read errors", "hangs", "slow",
	}
	limitFaults      = []string{"disk full of others", "memory full of others"}
	clockFaults      = []string{"same mtime", "coarse mtime", "future mtime"}
	writeBackFaults  = []string{"errors", "some errors", "torn", "flush fails", "thin pool full"}
	plants           = []string{"other user", "same user"}
	modes            = []string{"stateless", "stateless", "cached", "passthrough"}
	umount           = "umount" // an End in order; it is no fault
	milliseconds     = time.Millisecond
	longHang         = 7 * time.Second // longer than the time-out of the tiers
	longHangsPerMill = 10              // of the hangs of the disk
)

// PlanCycle returns a cycle of the plan of a seed. It is a pure function. Faults of other
// groups are left out, and do not change the rest.
func PlanCycle(seed uint64, n int, groups []string) Cycle {
	rng := rand.New(rand.NewPCG(seed, uint64(n)))
	p := planner{rng: rng, groups: groups}
	c := Cycle{Number: n, Mode: modes[rng.IntN(len(modes))]}
	if p.chance(8) && p.has(groupLimits) {
		c.Files = 256
	}
	if p.chance(5) && p.has(groupLimits) {
		c.Memory = "32MiB"
	}
	c.Denied = p.chance(50) && p.has(groupSource)
	p.add(&c.Down, Event{Name: "evict"})
	for range rng.IntN(3) {
		p.add(&c.Down, Event{Group: groupFlip, Name: "at rest"})
	}
	if p.chance(6) {
		p.add(&c.Down, Event{Group: groupClock, Name: "chmod copies"})
	}
	if p.chance(10) {
		p.add(&c.Down, Event{Group: groupPlant, Name: plants[rng.IntN(len(plants))]})
	}
	if p.chance(15) {
		p.add(&c.Down, Event{Name: "remount disk"})
	}
	if p.chance(14) {
		f := writeBackFaults[rng.IntN(len(writeBackFaults))]
		c.Fresh = (f == "thin pool full" || p.chance(20)) && p.has(groupWriteBack)
		p.add(&c.Up, Event{Group: groupWriteBack, Name: f, For: p.between(300, 900)})
	}
	if p.chance(55) {
		p.add(&c.Up, p.tierFault())
	}
	if p.chance(55) {
		p.add(&c.Up, Event{Group: groupSource, Name: sourceFaults[rng.IntN(len(sourceFaults))], For: p.between(100, 500)})
	}
	if p.chance(8) {
		p.add(&c.Up, Event{Group: groupClock, Name: clockFaults[rng.IntN(len(clockFaults))], For: p.between(100, 400)})
	}
	for range rng.IntN(2) {
		p.add(&c.Up, Event{Group: groupFlip, Name: "in use"})
		p.add(&c.Up, Event{Name: "scrub"})
	}
	rng.Shuffle(len(c.Up), func(i, j int) { c.Up[i], c.Up[j] = c.Up[j], c.Up[i] })
	c.End = p.end()
	p.limits(&c, rand.New(rand.NewPCG(^seed, uint64(n)))) // the rest of the plan does not depend on it
	leftOut := func(e Event) bool { return !p.has(e.Group) }
	c.Down, c.Up = slices.DeleteFunc(c.Down, leftOut), slices.DeleteFunc(c.Up, leftOut)
	return c
}

// A planner makes the events of one cycle.
type planner struct {
	rng    *rand.Rand
	groups []string
}

func (p planner) chance(percent int) bool { return p.rng.IntN(100) < percent }
func (p planner) has(group string) bool   { return group == "" || slices.Contains(p.groups, group) }
func (p planner) between(a, b int) time.Duration {
	return time.Duration(a+p.rng.IntN(b-a)) * milliseconds
}

// The kinds of odd file systems. They are those of ext4; others have the usual one.
const (
	fewInodes   = "few inodes"   // fewer than the dataset has files
	coarseTimes = "coarse times" // with inodes of 128 bytes, it stores whole seconds
)

// limits adds limits of the daemon and of the disk, which last for the cycle.
func (p planner) limits(c *Cycle, rng *rand.Rand) {
	size, odd, full, threads := rng.IntN(100), rng.IntN(100), rng.IntN(100), rng.IntN(100)
	e := Event{Group: groupLimits, Name: limitFaults[rng.IntN(len(limitFaults))], Wait: time.Duration(20+rng.IntN(230)) * milliseconds, Seed: rng.Uint64()}
	if !p.has(groupLimits) {
		return
	}
	if size < 10 {
		c.Size = 512 // less than the largest files have
	}
	if odd < 10 {
		c.Fresh, c.Odd = true, fewInodes
		if odd < 5 {
			c.Odd = coarseTimes
		}
	}
	if full < 10 {
		c.Up = slices.Insert(c.Up, rng.IntN(len(c.Up)+1), e)
	}
	if threads < 10 {
		c.Threads = 120
	}
}

// add adds an event.
func (p planner) add(events *[]Event, e Event) {
	e.Wait, e.Seed = p.between(20, 250), p.rng.Uint64()
	*events = append(*events, e)
}

func (p planner) tierFault() Event {
	e := Event{Group: groupTier, Name: tierFaults[p.rng.IntN(len(tierFaults))], For: p.between(100, 600)}
	if p.rng.IntN(1000) < longHangsPerMill*len(tierFaults) && e.Name == "disk hangs" {
		e.For = longHang
	}
	return e
}

func (p planner) end() Event {
	e := Event{Wait: p.between(50, 500), Seed: p.rng.Uint64()}
	n := p.rng.IntN(100)
	switch {
	case n < 2 && p.has(groupCut) && p.has(groupClock):
		e.Group, e.Name = groupCut, "clock set back"
	case n < 22 && p.has(groupCut):
		e.Group = groupCut
	case n < 26 && p.has(groupKill):
		e.Group, e.Name, e.For = groupKill, "while the disk hangs", p.between(100, 1000)
	case n < 96 && p.has(groupKill):
		e.Group = groupKill
	default:
		e.Name = umount
	}
	return e
}

// String describes the cycle in one line.
func (c Cycle) String() string {
	return fmt.Sprintf("cycle %d, %s: down %v, up %v, end %v", c.Number, c.Mode, c.Down, c.Up, c.End)
}
