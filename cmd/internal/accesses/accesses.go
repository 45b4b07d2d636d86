// Package accesses summarizes how jobs use a mount: the sizes of files and requests, their order, and
// what readers wait for. It is made from a status, or from the lines of a trace, and advises on settings.
package accesses

import (
	"path"
	"slices"
	"strings"

	"github.com/milkweedfs/milkweed/cmd/internal/control"
	"github.com/milkweedfs/milkweed/cmd/internal/paths"
	"github.com/milkweedfs/milkweed/placement"
)

// Bounds of the memory that a Recorder takes.
const (
	maxFiles = 1 << 18 // files whose opens and positions are known
	maxDirs  = 1000    // directories that are counted on their own
)

// Others is the name of all directories beyond the first maxDirs.
const Others = "(others)"

// A Summary is how jobs have used a mount. Sizes are in bytes, times in seconds.
type Summary struct {
	Seconds float64 `json:"seconds"` // how long accesses were recorded; since the mount: seconds with an access
	Dropped int64   `json:"dropped"` // operations that were not recorded

	Opens     int64 `json:"opens"`
	Files     int64 `json:"files"`      // different files among them, at most maxFiles
	FileBytes int64 `json:"file_bytes"` // sizes of the files opened, each open counted
	InOrder   int64 `json:"in_order"`   // opens whose path follows that of the open before, in the same directory
	Neighbors int64 `json:"neighbors"`  // opens in the directory of the open before

	Reads      int64 `json:"reads"`
	ReadBytes  int64 `json:"read_bytes"`
	Spliced    int64 `json:"spliced"`    // reads whose offset is not known
	Sequential int64 `json:"sequential"` // reads that go on where an earlier one of the file ended, or begin the file
	Random     int64 `json:"random"`     // other reads with an offset

	FileSizes    []Bucket `json:"file_sizes"`    // of the opens
	RequestSizes []Bucket `json:"request_sizes"` // of the reads

	Levels map[string]int64   `json:"levels"` // opens, by the level that served them
	Waits  map[string]float64 `json:"waits"`  // durations of operations, by the cause of their longest wait

	Dirs []Dir `json:"directories"` // those with most opens and reads first
}

// A Bucket counts sizes up to a bound, and above that of the bucket before.
type Bucket struct {
	UpTo  int64 `json:"up_to_bytes"` // 0: there is no bound
	Count int64 `json:"count"`
}

// A Dir is how one directory was used.
type Dir struct {
	Path       string `json:"path"`
	Opens      int64  `json:"opens"`
	FileBytes  int64  `json:"file_bytes"`
	Reads      int64  `json:"reads"`
	Sequential int64  `json:"sequential"`
	Random     int64  `json:"random"`
}

// MarshalJSON implements json.Marshaler.
func (d Dir) MarshalJSON() ([]byte, error) {
	type plain Dir
	return paths.Marshal(plain(d))
}

// UnmarshalJSON implements json.Unmarshaler.
func (d *Dir) UnmarshalJSON(p []byte) error {
	type plain Dir
	return paths.Unmarshal(p, (*plain)(d))
}

// bucketsOf returns the buckets of counts.
func bucketsOf(counts *placement.Sizes) []Bucket {
	all := make([]Bucket, len(counts))
	for i, n := range counts {
		all[i].Count = n
	}
	for i, b := range placement.SizeBounds {
		all[i].UpTo = b
	}
	return all
}

// SinceMount returns how jobs have used the mount with a status since its daemon started. It has no Dirs.
func SinceMount(s *control.Status) Summary {
	u := &s.Usage
	sum := Summary{
		Seconds: float64(u.ActiveSeconds), Files: u.Files, InOrder: u.InOrder, Neighbors: u.Neighbors,
		Spliced: u.Spliced, Sequential: u.Sequential, Random: u.Random, Reads: u.Spliced + u.Sequential + u.Random,
		FileSizes: bucketsOf(&u.FileSizes), RequestSizes: bucketsOf(&u.RequestSizes),
		Levels: make(map[string]int64), Waits: make(map[string]float64), Dirs: []Dir{},
	}
	for level, modes := range s.Opens {
		for mode, n := range modes {
			sum.Opens += n
			sum.FileBytes += s.OpenedBytes[level][mode]
			if n > 0 {
				sum.Levels[level] += n
			}
		}
		sum.ReadBytes += s.ReadBytes[level]
	}
	for _, w := range s.Waits {
		if w.Seconds > 0 {
			sum.Waits[w.Cause] += w.Seconds
		}
	}
	return sum
}

// A Recorder makes a Summary.
type Recorder struct {
	all                 Summary
	fileSizes, requests placement.Sizes
	files               map[string]*position
	dirs                map[string]*Dir
	last                string // the path of the last open
}

// A position is where the last read of a file ended.
type position struct {
	opened bool
	end    int64
}

// NewRecorder returns a Recorder that has recorded nothing.
func NewRecorder() *Recorder {
	return &Recorder{
		all: Summary{
			Levels: make(map[string]int64), Waits: make(map[string]float64),
		},
		files: make(map[string]*position), dirs: make(map[string]*Dir),
	}
}

// Add records a line of a trace.
func (r *Recorder) Add(l control.TraceLine) {
	r.all.Dropped += l.Dropped
	if l.Op == "" || l.Failed || l.Size == nil {
		return
	}
	if l.Cause != "-" {
		r.all.Waits[l.Cause] += l.Seconds
	}
	name := l.Path
	d, p := r.dir(path.Dir(name)), r.position(name)
	if l.Op == "open" {
		r.open(name, *l.Size, l.Level, d, p)
	} else {
		r.read(l.Offset, *l.Size, d, p)
	}
}

func (r *Recorder) open(name string, size int64, level string, d *Dir, p *position) {
	r.all.Opens++
	r.all.FileBytes += size
	r.all.Levels[level]++
	r.fileSizes.Add(size)
	d.Opens++
	d.FileBytes += size
	if p != nil && !p.opened {
		p.opened = true
		r.all.Files++
	}
	if path.Dir(name) == path.Dir(r.last) && r.last != "" && name != r.last {
		r.all.Neighbors++
		if name > r.last {
			r.all.InOrder++
		}
	}
	r.last = name
}

func (r *Recorder) read(offset *int64, size int64, d *Dir, p *position) {
	r.all.Reads++
	r.all.ReadBytes += size
	r.requests.Add(size)
	d.Reads++
	switch {
	case offset == nil:
		r.all.Spliced++
		return
	case *offset == 0, p != nil && placement.IsSequential(*offset, p.end):
		r.all.Sequential++
		d.Sequential++
	default:
		r.all.Random++
		d.Random++
	}
	if p != nil {
		p.end = *offset + size
	}
}

// position returns that of a file, or nil if there are too many.
func (r *Recorder) position(name string) *position {
	p := r.files[name]
	if p == nil && len(r.files) < maxFiles {
		p = new(position)
		r.files[name] = p
	}
	return p
}

// dir returns the directory of a path.
func (r *Recorder) dir(name string) *Dir {
	if r.dirs[name] == nil && len(r.dirs) >= maxDirs {
		name = Others
	}
	d := r.dirs[name]
	if d == nil {
		d = &Dir{Path: name}
		r.dirs[name] = d
	}
	return d
}

// Summary returns what was recorded in a number of seconds.
func (r *Recorder) Summary(seconds float64) Summary {
	s := r.all
	s.Seconds, s.FileSizes, s.RequestSizes = seconds, bucketsOf(&r.fileSizes), bucketsOf(&r.requests)
	s.Dirs = make([]Dir, 0, len(r.dirs))
	for _, d := range r.dirs {
		s.Dirs = append(s.Dirs, *d)
	}
	slices.SortFunc(s.Dirs, func(a, b Dir) int {
		if n := (b.Opens + b.Reads) - (a.Opens + a.Reads); n != 0 {
			return int(max(-1, min(n, 1)))
		}
		return strings.Compare(a.Path, b.Path)
	})
	return s
}

// MeanFile returns the mean size of the files opened.
func (s Summary) MeanFile() int64 { return s.FileBytes / max(s.Opens, 1) }

// Waited returns how long the operations took that waited.
func (s Summary) Waited() (seconds float64) {
	for _, w := range s.Waits {
		seconds += w
	}
	return seconds
}
