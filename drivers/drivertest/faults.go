package drivertest

import (
	"context"
	"fmt"
	"math/rand/v2"
	"path"
	"slices"
	"sync"
	"time"

	"github.com/milkweedfs/milkweed/drivers"
)

var (
	_ drivers.Store         = (*Faults)(nil)
	_ drivers.Readlinker    = (*Faults)(nil)
	_ drivers.Namer         = (*Faults)(nil)
	_ drivers.Xattrer       = (*Faults)(nil)
	_ drivers.ACLer         = (*Faults)(nil)
	_ drivers.HoleFinder    = (*Faults)(nil)
	_ drivers.Statfser      = (*Faults)(nil)
	_ drivers.Prober        = (*Faults)(nil)
	_ drivers.CopyProber    = (*Faults)(nil)
	_ drivers.PathChecker   = (*Faults)(nil)
	_ drivers.Profiler      = (*Faults)(nil)
	_ drivers.Sampler       = (*Faults)(nil)
	_ drivers.Comparer      = (*Faults)(nil)
	_ drivers.Permitter     = (*Faults)(nil)
	_ drivers.Pinner        = (*Faults)(nil)
	_ drivers.Lister        = (*Faults)(nil)
	_ drivers.VersionOpener = (*Faults)(nil)
	_ drivers.Sweeper       = (*Faults)(nil)
	_ drivers.Syncer        = (*Faults)(nil)
	_ drivers.Restamper     = (*Faults)(nil)
	_ drivers.Linker        = (*Faults)(nil)
	_ drivers.Streamer      = (*object)(nil)
	_ drivers.Verifier      = (*object)(nil)
	_ drivers.Checker       = (*object)(nil)
	_ drivers.BackingFiler  = (*object)(nil)
	_ drivers.Splicer       = (*object)(nil)
	_ drivers.Writer        = (*writer)(nil)
)

// An Op is a kind of operation on a driver or on its Objects and Writers.
type Op string

// The operations of Drivers, Objects, Stores and Writers.
const (
	OpOpen     Op = "open"    // Open and OpenVersion
	OpReadDir  Op = "readdir" // ReadDir, List, Sample, Sweep and Copies
	OpStat     Op = "stat"
	OpEntry    Op = "entry" // one name that ReadDir has found; an error is its Info.Err; not included in ""
	OpReadlink Op = "readlink"
	OpXattr    Op = "xattr" // Listxattr and Getxattr
	OpACL      Op = "acl"
	OpHoles    Op = "holes"
	OpStatfs   Op = "statfs" // its name is "."
	OpProbe    Op = "probe"  // its name is "."
	OpSync     Op = "sync"   // its name is "."
	OpRestamp  Op = "restamp"
	OpLink     Op = "link"
	OpRead     Op = "read"   // Object.ReadAt, Streamer.Stream, Checker.Check and ProbeCopy
	OpStream   Op = "stream" // Read of the result of Streamer.Stream
	OpVerify   Op = "verify" // Verifier.Verify
	OpClose    Op = "close"  // Object.Close; the inner Object is closed even if an error is injected
	OpCreate   Op = "create"
	OpRemove   Op = "remove"
	OpWrite    Op = "write"    // Writer.WriteAt
	OpReadBack Op = "readback" // Writer.ReadAt
	OpCommit   Op = "commit"
	OpAbort    Op = "abort" // Err has no effect
)

// A Rule is a fault with its conditions. It applies to an operation that meets all of them.
type Rule struct {
	// Conditions.

	Op    Op                     // the operation; "": all
	Name  string                 // pattern of path.Match for the whole name; "": all
	Match func(name string) bool // additional condition on the name, or nil; called under a lock

	After int     // the first After operations are not affected
	Times int     // at most Times operations are affected; 0: all
	P     float64 // probability that an operation is affected; 0: 1

	// Effects, in this order.

	Panic bool          // panic
	Hang  bool          // block until Release or Clear; a done context ends only the hang of a stream
	Delay time.Duration // wait, at most until the context is done
	Err   error         // return this error and do nothing else
	Short bool          // a read or a stream returns half of its bytes and io.ErrUnexpectedEOF

	// End, if not 0, is the offset at which files end although they are larger: a ReadAt of what
	// follows returns drivers.ErrShort. After, Times and P do not apply.
	End int64
}

// Faults is a driver that wraps another one, injects the faults of its Rules, and counts
// operations. It implements every capability, so that drivers.As never returns a
// capability of the wrapped driver.
//
// An Object has the backing file and the splice descriptor of the inner one only while no
// Rule can apply to its reads, because Rules do not affect reads by the kernel.
//
// All methods may be called concurrently, also while operations are in flight.
type Faults struct {
	inner drivers.Driver
	stats *drivers.StatPool

	mu     sync.Mutex // guards the following
	rules  []*rule
	rand   *rand.Rand
	counts map[Op]int64
	bytes  map[Op]int64
	freed  chan struct{} // closed by Release
	hung   int           // operations that hang
}

// A rule is a Rule with its counters.
type rule struct {
	Rule
	matched  int // operations that met Op, Name and Match
	affected int // operations that also met After, Times and P
}

// NewFaults returns inner without faults. Rules with a probability affect the same operations
// in each run, if the order of operations is the same.
func NewFaults(inner drivers.Driver) *Faults {
	return &Faults{
		inner:  inner,
		stats:  drivers.NewStatPool(),
		rand:   rand.New(rand.NewPCG(1, 2)),
		counts: make(map[Op]int64),
		bytes:  make(map[Op]int64),
		freed:  make(chan struct{}),
	}
}

// Add adds r before the existing rules. Only the first rule that applies to an operation
// affects it. The caller may call remove to remove r.
func (f *Faults) Add(r Rule) (remove func()) {
	f.mu.Lock()
	defer f.mu.Unlock()
	added := &rule{Rule: r}
	f.rules = slices.Insert(f.rules, 0, added)
	return func() {
		f.mu.Lock()
		defer f.mu.Unlock()
		f.rules = slices.DeleteFunc(f.rules, func(r *rule) bool { return r == added })
	}
}

// Seed sets the seed of the random numbers that P uses.
func (f *Faults) Seed(seed uint64) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.rand = rand.New(rand.NewPCG(seed, 2))
}

// Release resumes all operations that hang. Later operations hang again.
func (f *Faults) Release() {
	f.mu.Lock()
	defer f.mu.Unlock()
	close(f.freed)
	f.freed = make(chan struct{})
}

// Clear removes all rules and resumes all operations that hang.
func (f *Faults) Clear() {
	f.mu.Lock()
	f.rules = nil
	f.mu.Unlock()
	f.Release()
}

// Hung returns the number of operations that hang now.
func (f *Faults) Hung() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.hung
}

// Count returns the number of operations of a kind that have begun, failed ones included.
func (f *Faults) Count(op Op) int64 {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.counts[op]
}

// Bytes returns the number of bytes that OpRead, OpWrite or OpReadBack transferred. OpRead
// includes the bytes of streams. Reads through a descriptor are not counted.
func (f *Faults) Bytes(op Op) int64 {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.bytes[op]
}

// Reset sets all counts of operations and bytes to zero.
func (f *Faults) Reset() {
	f.mu.Lock()
	defer f.mu.Unlock()
	clear(f.counts)
	clear(f.bytes)
}

// matches reports whether r can apply to op on name.
func (r *rule) matches(op Op, name string) bool {
	if r.Op != op && (r.Op != "" || op == OpEntry) || r.Match != nil && !r.Match(name) {
		return false
	}
	if r.Name == "" || r.Name == name {
		return true
	}
	ok, err := path.Match(r.Name, name)
	return ok && err == nil
}

// begin counts an operation. It returns the rule that applies to it, or the zero Rule, and the
// channel that Release closes.
func (f *Faults) begin(op Op, name string) (r Rule, freed <-chan struct{}) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.counts[op]++
	for _, r := range f.rules {
		if !r.matches(op, name) || r.Times > 0 && r.affected >= r.Times {
			continue
		}
		r.matched++
		if r.matched <= r.After || r.P > 0 && f.rand.Float64() >= r.P {
			continue
		}
		r.affected++
		if r.Hang {
			f.hung++
		}
		return r.Rule, f.freed
	}
	return Rule{}, nil
}

// inject counts an operation and injects the fault of its rule, except Short, which it
// returns.
func (f *Faults) inject(ctx context.Context, op Op, name string) (short bool, err error) {
	return f.injectUntil(ctx, nil, op, name)
}

// injectUntil is inject, except that an operation that hangs stops when until is closed, and
// fails with the error of ctx.
func (f *Faults) injectUntil(ctx context.Context, until <-chan struct{}, op Op, name string) (short bool, err error) {
	r, freed := f.begin(op, name)
	if r.Panic {
		panic(fmt.Sprintf("%s %s: injected", op, name))
	}
	if r.Hang {
		select {
		case <-freed:
		case <-until:
			err = fmt.Errorf("%s %s: %w", op, name, ctx.Err())
		}
		f.mu.Lock()
		f.hung--
		f.mu.Unlock()
		if err != nil {
			return false, err
		}
	}
	if r.Delay > 0 {
		select {
		case <-time.After(r.Delay):
		case <-ctx.Done():
			return false, fmt.Errorf("%s %s: %w", op, name, ctx.Err())
		}
	}
	if r.Err != nil {
		return false, fmt.Errorf("%s %s: injected fault: %w", op, name, r.Err)
	}
	return r.Short, nil
}

// end returns the End of the first rule that has one and matches a read of a file, or 0.
func (f *Faults) end(name string) int64 {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, r := range f.rules {
		if r.End > 0 && r.matches(OpRead, name) {
			return r.End
		}
	}
	return 0
}

// addBytes counts n bytes that op transferred.
func (f *Faults) addBytes(op Op, n int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.bytes[op] += int64(n)
}

// affects reports whether any rule can apply to op on name.
func (f *Faults) affects(op Op, name string) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.ContainsFunc(f.rules, func(r *rule) bool { return r.matches(op, name) })
}
