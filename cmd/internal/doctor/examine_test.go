package doctor

import (
	"fmt"
	"math"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/milkweedfs/milkweed/cmd/internal/check"
	"github.com/milkweedfs/milkweed/cmd/internal/control"
	"github.com/milkweedfs/milkweed/cmd/internal/procs"
	"github.com/milkweedfs/milkweed/drivers/blob"
	"github.com/milkweedfs/milkweed/fs"
	"github.com/milkweedfs/milkweed/placement"
)

const (
	mib = 1 << 20
	gib = 1 << 30
)

// healthy returns the facts about a mount in its third epoch, of which nothing has to change. The
// source is fast, and all files have a copy.
func healthy() *Facts {
	began := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	hits := []control.EpochOpens{{Level: "ram", Opens: 500}, {Level: "ssd", Opens: 500}, {Level: "source"}, {Level: "fill"}}
	return &Facts{
		Version: "1.2.3",
		Status: control.Status{
			Milkweed: "1.2.3", MountPoint: "/mnt/data", Mode: "stateless", ModeReason: "files are small", Since: began, UptimeSeconds: 3600, Ready: true,
			Source: control.Source{Path: "/lustre/data", Passthrough: true},
			Tiers: []control.Tier{
				{Level: 1, Name: "ram", Path: "/dev/shm/m", QuotaBytes: 100 * mib, UsedBytes: 100 * mib, Files: 500, Health: control.Healthy, PassthroughReason: "the mode is stateless"},
				{Level: 2, Name: "ssd", Path: "/local/m", QuotaBytes: 10 * gib, UsedBytes: 100 * mib, Files: 500, Health: control.Healthy, PassthroughReason: "the mode is stateless"},
			},
			Epochs: []control.Epoch{
				{Seconds: 600, Ended: true, Files: 1000, Opens: []control.EpochOpens{{Level: "source", Opens: 900}, {Level: "fill", Opens: 100}}, Waits: []control.EpochWait{{Level: "source", Cause: control.Latency, Waits: 1000, Seconds: 300}}},
				{Seconds: 60, Ended: true, Files: 1000, Opens: hits},
				{Seconds: 6, Files: 100, Opens: hits[:1], Waits: []control.EpochWait{{Level: "ssd", Cause: control.TierCause, Waits: 100, Seconds: 0.1}}},
			},
			EpochsEnded: 2,
			Opens:       map[string]map[string]int64{"ram": {"stateless": 1000}, "source": {"stateless": 1000}},
			OpenedBytes: map[string]map[string]int64{"ram": {"stateless": 100 * mib}, "source": {"stateless": 100 * mib}},
		},
		Settings: map[string]string{
			"mount.mode": "auto", "mount.consistency": "1m0s", "source.clock_skew": "5s", "source.bandwidth": "", "source.operations": "0",
			"scrub.interval": "0s", "placement.window": "0", "log.file": "/var/lib/milkweed/data.log",
		},
		Process:   Process{Known: true, Open: 60, Soft: 65536, Hard: 65536, Threads: math.MaxInt64, Memory: math.MaxInt64, MemoryLeft: math.MaxInt64},
		Tiers:     []Storage{{Known: true, Device: 1, Size: gib, Available: 500 * mib}, {Known: true, Device: 2, Size: 100 * gib, Available: 50 * gib}},
		Source:    Source{Files: 8, Open: 400 * time.Microsecond, Read: 900 * time.Microsecond},
		ReadAhead: fs.MaxRequest, ReadAheadFile: "/sys/class/bdi/0:42/read_ahead_kb",
	}
}

// anEpoch changes the last epoch that has ended.
func anEpoch(f *Facts, change func(e *control.Epoch)) { change(&f.Status.Epochs[1]) }

// reads sets the mean size of the files that were opened.
func reads(f *Facts, mean int64) { f.Status.OpenedBytes["ram"]["stateless"] = 2000*mean - 100*mib }

func peered(f *Facts, nodes ...control.PeerAnswer) {
	f.Status.Peers = &control.Peers{Self: "a", Roster: control.Roster{Nodes: int64(1 + len(nodes))}}
	f.Peers = nodes
}

func node(name, problem, remedy string) control.PeerAnswer {
	return control.PeerAnswer{Peer: control.Peer{Name: name}, Problem: problem, Remedy: remedy}
}

// Of a healthy mount there is no finding. Each change of its facts makes one, with a severity, a
// subject, the numbers that were seen, and a remedy.
func TestExamine(t *testing.T) {
	if got := Examine(healthy()); len(got) > 0 {
		t.Errorf("a healthy mount has findings: %+v", got)
	}
	later := healthy()
	later.Status.Epochs[2].Waits = nil // as the second: what the first one waited has passed
	if got := Examine(later); len(got) > 0 {
		t.Errorf("a healthy mount, whose readers waited in its first epoch only, has findings: %+v", got)
	}
	for what, change := range map[string]func(*control.Status){
		"most of what was copied": func(s *control.Status) { s.ReadBytes = map[string]int64{"ram": 300 * mib} },
		"passthrough":             func(s *control.Status) { s.Opens["ram"]["passthrough"] = 1 },
		"files without copies":    func(s *control.Status) { s.Names.OpenedCopied, s.Placement.PlacedBytes = 7*mib, gib },
	} {
		read := healthy()
		read.Status.Names.OpenedBytes, read.Status.Names.OpenedCopied = gib, gib
		change(&read.Status)
		if got := partly(read); len(got) > 0 {
			t.Errorf("%s: %+v", what, got)
		}
	}
	for name, tt := range map[string]struct {
		change   func(f *Facts)
		severity Severity
		subject  string
		seen     string
		remedy   string
	}{
		"draining": {func(f *Facts) {
			f.Status.Draining = true
			f.Status.Elsewhere = []procs.Namespace{{ID: 7, Processes: []procs.Process{{PID: 42, Name: "python3"}}}}
		}, Warning, "mount", "python3 (42)", "umount --force /mnt/data"},
		"panics":  {func(f *Facts) { f.Status.Panics = 2 }, Problem, "daemon", "2 panics", "Read /var/lib/milkweed/data.log"},
		"crashes": {func(f *Facts) { f.Status.Crashes = 1 }, Problem, "daemon", "after 1 crash", "milkweed debug /mnt/data"},
		"a generation that is gone": {func(f *Facts) { f.Status.Generation, f.Status.GenerationGone, f.Linked = "v1", true, "v2" }, Problem, "generation",
			"no longer has v1", "milkweed switch v2 /mnt/data"},
		"a generation that is gone, without a link": {func(f *Facts) { f.Status.Generation, f.Status.GenerationGone = "v1", true }, Problem, "generation",
			"no longer has v1", "`milkweed generations`"},
		"stuck": {func(f *Facts) { f.Status.StuckRequests, f.Status.OldestRequestSeconds = 3, 125 }, Problem, "requests",
			"3 requests of programs wait for more than a minute, the oldest for 2m5s", "hangs"},

		"down": {func(f *Facts) {
			f.Status.Tiers[1].Health, f.Status.Tiers[1].Reason = control.Down, "input/output error"
		}, Problem, "tier ssd",
			"down: input/output error", "`df /local/m`"},
		"slow tier": {func(f *Facts) {
			f.Status.Tiers[1].Health, f.Status.Tiers[1].Reason = control.Down, "slow: reads take 2s, those of the source 5ms"
		}, Problem, "tier ssd", "reads take 2s", "dmesg"},
		"degraded": {func(f *Facts) {
			f.Status.Tiers[1].Health, f.Status.Tiers[1].Reason = control.Degraded, "read-only file system"
		}, Warning, "tier ssd", "degraded: read-only", "Repair it"},
		"hung": {func(f *Facts) {
			f.Status.Tiers[1].Health, f.Status.Tiers[1].Reason = control.Down, "no answer in time"
			f.Tiers[1] = Storage{Err: ErrNoAnswer}
		}, Problem, "tier ssd", "hangs: /local/m gives no answer within 5s; down: no answer in time", "when it answers"},
		"hung, not noticed": {func(f *Facts) { f.Tiers[1] = Storage{Err: fmt.Errorf("%w within 5s", ErrNoAnswer)} }, Problem, "tier ssd", "not noticed yet", "Check the disk"},
		"tier errors":       {func(f *Facts) { f.Status.Tiers[1].Errors = 1 }, Note, "tier ssd", "1 operation failed", "dmesg"},
		"tier not examined": {func(f *Facts) { f.Tiers[1] = Storage{Err: unix.EACCES} }, Note, "tier ssd", "permission denied", ""},
		"corrupt":           {func(f *Facts) { f.Status.Tiers[1].Corrupt = 2 }, Problem, "tier ssd", "2 copies had other bytes", "milkweed scrub /mnt/data"},
		"mismatched": {func(f *Facts) { f.Status.Placement.Mismatched, f.Status.Source.Manifest = 1, "/m.mtree" }, Problem, "manifest",
			"1 file of the source is not", "check --manifest /m.mtree /lustre/data"},

		"hung source":    {func(f *Facts) { f.Source = Source{Err: ErrNoAnswer} }, Problem, "source", "hangs: /lustre/data", "Check its server"},
		"empty source":   {func(f *Facts) { f.Source.Empty = true }, Warning, "source", "/lustre/data is empty", "is mounted"},
		"renamed source": {func(f *Facts) { f.Source = Source{Gone: true, Err: unix.ENOENT} }, Problem, "source", "/lustre/data does not exist any more: it was renamed or removed", "Move it back"},
		"a small part read": {func(f *Facts) {
			f.Status.Mode, f.Status.Names.OpenedBytes, f.Status.Names.OpenedCopied = "cached", gib, gib
			f.Status.ReadBytes = map[string]int64{"fill": 20 * mib, "ram": 10 * mib}
		}, Warning, "copies", "jobs have read 30 MiB so far, 3% of the files that they opened (1.0 GiB)", "split the files"},
		"a small part read yet": {func(f *Facts) {
			f.Status.Names.OpenedBytes, f.Status.Names.OpenedCopied, f.Status.ReadBytes, f.Status.OpenHandles = gib, gib, map[string]int64{"fill": 20 * mib}, 2
		}, Note, "copies", "copied as a whole: 1.0 GiB; 2 files are open now", "split the files"},
		"fresh files": {func(f *Facts) { f.Status.Source.RacyFiles, f.Status.Source.RacyWindowSeconds = 3, 5 }, Note, "fresh files",
			"3 files changed less than 5s ago", "source.clock_skew"},
		"files that were fresh": {func(f *Facts) { f.Status.Source.RacySeen, f.Status.Source.RacyWindowSeconds = 3, 5 }, Note, "fresh files",
			"3 versions of files had changed less than 5s before", "source.clock_skew"},
		"dead source":        {func(f *Facts) { f.Source = Source{Err: unix.ESTALE} }, Problem, "source", "stale", "Check its server"},
		"unreachable source": {func(f *Facts) { f.Source = Source{Err: unix.EACCES} }, Note, "source", "not measured: permission denied", ""},
		"source errors":      {func(f *Facts) { f.Status.Source.Errors = 5 }, Warning, "source", "5 operations failed", "dd"},
		"bucket errors":      {func(f *Facts) { f.Status.Source.Errors, f.Status.Source.Requests = 5, new(blob.Stats) }, Warning, "source", "5 operations failed", "the vendor's own tools"},
		"stalled":            {func(f *Facts) { f.Status.Fills.Stalled = 2 }, Warning, "source", "2 requests wait for more than a second", "network"},
		"slow source": {func(f *Facts) {
			f.Source.Open, f.Source.Read, f.Status.Fills.SourceSlowdown = 31*time.Millisecond, 44*time.Millisecond, 2.5
			anEpoch(f, func(e *control.Epoch) {
				e.Opens = []control.EpochOpens{{Level: "source", Opens: 5}, {Level: "ssd", Opens: 995}}
			})
		}, Warning, "source", "slow: 31ms to open a file, 44ms to read its beginning (median of 8 files); requests take 2.5 ×", "milkweed warmup /mnt/data"},
		"slow source, not read": {func(f *Facts) { f.Source.Open = 31 * time.Millisecond }, Note, "source", "the last epoch did not read it", "--peers"},
		"rate limit": {func(f *Facts) {
			f.Settings["source.bandwidth"] = "50MB"
			anEpoch(f, func(e *control.Epoch) {
				e.Waits = []control.EpochWait{{Level: "source", Cause: control.Bandwidth, Waits: 100, Seconds: 40}, {Level: "ram", Cause: control.TierCause, Waits: 9, Seconds: 1}}
			})
			f.Status.Epochs[2].Waits = nil
		}, Warning, "source", "source.bandwidth = 50MB limits this mount, and readers have waited 40s", "Raise source.bandwidth"},
		"throttled": {func(f *Facts) {
			f.Status.Source.Requests = &blob.Stats{Counters: blob.Counters{Gets: 1000, Throttled: 100}}
		}, Warning, "source", "refused 100 of 1,000 requests", "source.operations"},
		"refused credentials": {func(f *Facts) {
			f.Status.Source.Requests = &blob.Stats{Refused: "HTTP 400: ExpiredToken", RefusedRemedy: "Renew the session token.", RefusedSeconds: 90}
		}, Problem, "source", "refused the credentials for 1m30s: HTTP 400: ExpiredToken", "Renew the session token."},
		"archived objects": {func(f *Facts) { f.Status.Source.Requests = &blob.Stats{Archived: 1200} }, Warning, "source", "1,200 objects are archived", "Restore them"},
		"denied objects":   {func(f *Facts) { f.Status.Source.Requests = &blob.Stats{Denied: 1} }, Warning, "source", "denied access to 1 object", "Permit"},
		"odd store": {func(f *Facts) {
			f.Status.Source.Requests = &blob.Stats{Oddities: []string{"objects have the same ETag"}}
		}, Warning, "source", "deviates from its protocol: objects have the same ETag", "manifest"},

		"clock of a store": {func(f *Facts) { f.Status.Source.Requests = &blob.Stats{ClockOffsetSeconds: -3600} }, Warning, "clock",
			"the clock of this machine is 1h0m0s ahead of that of the store; requests are signed with the time of the store", "chrony"},
		"clock": {func(f *Facts) { f.Status.Source.ClockAheadSeconds, f.Unsynchronized = 600, true }, Warning, "clock",
			"10m0s or more behind that of the source; the kernel says that this clock is not synchronized", "chrony"},
		"clock, by a file": {func(f *Facts) { f.Source.Ahead, f.Source.Future = time.Minute, "d\n/f" }, Warning, "clock", `1m0s or more behind that of the source: "d\n/f"`, "date -u"},
		"clock, far":       {func(f *Facts) { f.Source.Ahead = 2 * placement.MaxClockAhead }, Problem, "clock", "2h0m0s or more behind", "mount again"},

		"full": {func(f *Facts) {
			f.Status.Tiers[1].UsedBytes, f.Status.Tiers[1].Files, f.Status.Placement.Skipped = 10*gib, 500, 300
			anEpoch(f, func(e *control.Epoch) {
				e.Opens = []control.EpochOpens{{Level: "source", Opens: 300}, {Level: "ssd", Opens: 700}}
			})
		}, Warning, "tiers", "100 MiB of 100 MiB used in ram, 10 GiB of 10 GiB used in ssd; 300 files had no room, and are read from the source; in the last epoch, 300 of 1,000 opens",
			`quota = "55GiB" at most`},
		"full file system": {func(f *Facts) {
			f.Status.Tiers[1].UsedBytes, f.Status.Placement.Skipped, f.Tiers[1].Available = 10*gib, 300, mib
		}, Warning, "tiers", "full", "Add a tier on another disk"},
		"too large": {func(f *Facts) { f.Status.Placement.Skipped = 1 }, Note, "tier ssd", "1 file had no room", "must fit into one tier"},
		"later epochs": {func(f *Facts) {
			f.Status.Placement.Failed = 40
			anEpoch(f, func(e *control.Epoch) {
				e.Opens = []control.EpochOpens{{Level: "source", Opens: 40}, {Level: "ssd", Opens: 960}}
			})
		}, Warning, "epochs", "40 of 1,000 opens in the last epoch went to the source, though others were before it: 40 copies have failed", "log"},
		"unopened copies": {func(f *Facts) {
			n := &f.Status.Names
			n.CopiedFiles, n.UnopenedFiles, n.UnopenedBytes = 1000, 300, 30*mib
		}, Note, "copies", "300 of 1,000 files with copies were copied ahead, and no job has opened them: 30 MiB", "`milkweed plan`"},
		"others use the disk": {func(f *Facts) { f.Tiers[1].Available = gib }, Warning, "tier ssd", "its quota allows 9.9 GiB more, but the file system has 1.0 GiB available", "reduce the quota"},
		"tiers on one disk": {func(f *Facts) {
			f.Tiers[0] = Storage{Known: true, Device: 2, Size: 100 * gib, Available: 11 * gib}
			f.Tiers[1] = f.Tiers[0]
			f.Status.Tiers[0].QuotaBytes = 5 * gib
		}, Warning, "tiers ram, ssd", "they share a file system, and their quotas allow 15 GiB more, but the file system has 11 GiB available", "Reduce the quotas"},

		"few files": {func(f *Facts) { f.Process.Soft, f.Process.Hard = 1024, unix.RLIM_INFINITY }, Warning, "open files",
			"may open 1,024 files (soft limit; the hard one is unlimited), and 60 are open", "LimitNOFILE="},
		"log lost":    {func(f *Facts) { f.Status.LogLost = 3 }, Warning, "log", "3 messages are missing in it", "Make room"},
		"limits":      {func(f *Facts) { f.Process.Limits = []check.Limit{{Effect: "the daemon ends", Remedy: "Raise it."}} }, Warning, "limits", "the daemon ends", "Raise it."},
		"few threads": {func(f *Facts) { f.Process.Threads, f.Process.ThreadLimit = 3, "pids.max is 400" }, Warning, "threads", "pids.max is 400, and 3 are left", "TasksMax="},
		"calls wait": {func(f *Facts) {
			f.Process.Threads, f.Process.ThreadLimit, f.Status.WaitingCalls = 3, "pids.max is 400", 2
		}, Problem, "threads", "pids.max is 400, and 3 are left; 2 calls of the source or a tier wait for others to end", "TasksMax="},
		"many open files": {func(f *Facts) { f.Process.Open = 60000 }, Problem, "open files", "60000 are open; opens wait", "Raise the hard limit"},
		"little memory":   {func(f *Facts) { f.Process.Memory, f.Process.MemoryLeft = 256*mib, 200*mib }, Warning, "memory", "permits 256 MiB", "memory.max"},
		"no memory left":  {func(f *Facts) { f.Process.Memory, f.Process.MemoryLeft = 4*gib, 100*mib }, Problem, "memory", "100 MiB of the 4.0 GiB", "Raise the memory limit"},

		"waits for latency": {func(f *Facts) {
			f.Status.Epochs[2].Waits = []control.EpochWait{{Level: "source", Cause: control.Latency, Waits: 400, Seconds: 20}, {Level: "ssd", Cause: control.TierCause, Waits: 4, Seconds: 1}}
		}, Warning, "waits", "waited 20s for the source to begin an answer in the last epoch, 95% of all waits (50ms each)", "milkweed plan /mnt/data"},
		"waits of the first epoch": {func(f *Facts) { f.Status.Epochs, f.Status.EpochsEnded = f.Status.Epochs[:1], 1 }, Note, "waits", "waited 5m0s", "warmup"},
		"waits of the first epoch, as the second begins": {func(f *Facts) {
			f.Status.Epochs = []control.Epoch{f.Status.Epochs[0], {Seconds: 1, Files: 10, Opens: f.Status.Epochs[2].Opens}}
			f.Status.EpochsEnded = 1
		}, Note, "waits", "waited 5m0s", "warmup"},
		"waits without epochs": {func(f *Facts) {
			f.Status.Epochs, f.Status.EpochsEnded = nil, 0
			f.Status.Waits = []control.Wait{{Level: "peers", Cause: control.PeersCause, Waits: 10, Seconds: 1800}}
		}, Note, "waits", "waited 30m0s for other nodes since the mount", "milkweed peers"},

		"passthrough": {func(f *Facts) {
			reads(f, 8*mib)
			for i := range f.Status.Tiers {
				f.Status.Tiers[i].PassthroughReason = fs.ErrPrivilege.Error()
			}
		}, Warning, "tier ssd", "files are 8.0 MiB on average, and the kernel cannot read them directly: passthrough needs CAP_SYS_ADMIN", "Run the daemon as root"},
		"old kernel": {func(f *Facts) {
			reads(f, 8*mib)
			f.Status.Tiers[0].PassthroughReason = fs.ErrKernel.Error()
			f.Status.Tiers[1].PassthroughReason = fs.ErrKernel.Error()
		}, Note, "tier ram", "passthrough needs Linux 6.9", "Linux 6.9"},
		"large files": {func(f *Facts) { reads(f, 8*mib) }, Warning, "mode", "it is stateless (files are small); the opened files are 8.0 MiB on average, for which passthrough is faster", `mount.mode = "passthrough"`},
		"small files": {func(f *Facts) {
			f.Status.Mode, f.Settings["mount.mode"] = "passthrough", "passthrough"
			f.Status.Tiers[0].Passthrough, f.Status.Tiers[1].Passthrough = true, true
		}, Warning, "mode", "102 KiB on average, for which stateless is faster", `mount.mode = "auto" instead of "passthrough"`},
		"read-ahead": {func(f *Facts) { reads(f, 300<<10); f.ReadAhead = 128 << 10 }, Note, "read-ahead",
			"128 KiB at a time", "echo 1024 > /sys/class/bdi/0:42/read_ahead_kb"},

		"plan suspended": {func(f *Facts) {
			f.Status.Plan = placement.PlanStats{StreamCount: 1, Suspended: true, PlanCounters: placement.PlanCounters{Opens: 1000, Correct: 12}}
		}, Warning, "plan", "the job does not follow it, so that nothing is copied by it: 12 of 1,000 opens", "milkweed plan --show /mnt/data"},
		"plan not followed": {func(f *Facts) {
			f.Status.Plan = placement.PlanStats{StreamCount: 1, PlanCounters: placement.PlanCounters{Opens: 1000, Correct: 120}}
		}, Warning, "plan", "120 of 1,000 opens were predicted", "--lead"},
		"plan of other names": {func(f *Facts) {
			f.Status.Plan = placement.PlanStats{StreamCount: 1, PlanCounters: placement.PlanCounters{Missing: 3, Rejected: 1}}
		}, Warning, "plan", "4 paths of it are not in the mount", "relative"},

		"scrub failed": {func(f *Facts) { f.Status.Scrub.Last = &placement.ScrubReport{CopiesFailed: 1} }, Warning, "scrub", "could not read 1 copy", "milkweed scrub /mnt/data"},
		"scrub skipped": {func(f *Facts) {
			f.Status.Scrub.Last = &placement.ScrubReport{Skipped: []placement.ScrubSkip{{Tier: "ssd", Reason: "tier is down"}}}
		}, Note, "scrub", "did not verify tier ssd: tier is down", "when the tier works"},
		"scrub late":   {func(f *Facts) { f.Settings["scrub.interval"] = "15m" }, Warning, "scrub", "1h0m0s ago, and scrub.interval is 15m0s", "scrub.rate"},
		"late changes": {func(f *Facts) { f.Status.Sweep.OldestSeconds = 300 }, Note, "changes", "after up to 5m0s, and not within mount.consistency = 1m0s", "milkweed refresh /mnt/data"},

		"peers": {func(f *Facts) {
			peered(f, node("b", "it is gone", "Start it."), node("c", "it is gone", "Start it."), node("d", "", ""))
		}, Warning, "peers", "b, c: it is gone", "Start it."},
		"clock of a peer": {func(f *Facts) { peered(f, node("b", "its clock differs by more than 5s", "Synchronize.")) }, Warning, "peers", "b: its clock differs", "Synchronize"},
		"failovers":       {func(f *Facts) { peered(f); f.Status.Peers.Failovers = 3 }, Note, "peers", "3 reads went on elsewhere", ""},
		"not in roster":   {func(f *Facts) { peered(f); f.Status.Peers.Self = "" }, Warning, "peers", "not in the roster", "peers.name"},
		"version":         {func(f *Facts) { f.Version = "1.3.0" }, Note, "version", "the daemon is milkweed 1.2.3, and this command 1.3.0", "mount again"},
		"missing":         {func(f *Facts) { f.Missing = []Missing{{"daemon", unix.EPERM}} }, Note, "daemon", "not examined: operation not permitted", ""},
	} {
		t.Run(name, func(t *testing.T) {
			f := healthy()
			tt.change(f)
			got := Examine(f)
			if !slices.ContainsFunc(got, func(f Finding) bool {
				return f.Severity == tt.severity && f.Subject == tt.subject && strings.Contains(f.Seen, tt.seen) && strings.Contains(f.Remedy, tt.remedy)
			}) {
				t.Errorf("no %s about %s with %q and %q in %+v", tt.severity, tt.subject, tt.seen, tt.remedy, got)
			}
			for _, f := range got {
				if f.Severity != tt.severity && f.Severity != Note {
					t.Errorf("and %+v", f)
				}
				if f.Severity != Note && f.Remedy == "" {
					t.Errorf("no remedy: %+v", f)
				}
			}
		})
	}
}

// Facts near a limit, or of no consequence, make no finding.
func TestExamineNothing(t *testing.T) {
	for name, change := range map[string]func(f *Facts){
		"20,000 files":          func(f *Facts) { f.Process.Soft = 20000 },
		"clock within the skew": func(f *Facts) { f.Status.Source.ClockAheadSeconds = 4.5 },
		"a size near the limit": func(f *Facts) { reads(f, 600<<10) },
		"few opens": func(f *Facts) {
			reads(f, 8*mib)
			f.Status.Opens["ram"]["stateless"] = 1
			f.Status.Opens["source"]["stateless"] = 0
		},
		"a scrub in progress": func(f *Facts) { f.Settings["scrub.interval"] = "15m"; f.Status.Scrub.InProgress = true },
		"a recent scrub": func(f *Facts) {
			f.Settings["scrub.interval"] = "15m"
			f.Status.Scrub.LastEnd = f.Status.Since.Unix() + 3000
		},
		"short waits":           func(f *Facts) { f.Status.Epochs[2].Waits[0].Seconds = 0.9 },
		"a limit without waits": func(f *Facts) { f.Settings["source.bandwidth"] = "50MB" },
		"the bucket refuses few": func(f *Facts) {
			f.Status.Source.Requests = &blob.Stats{Counters: blob.Counters{Gets: 1000, Throttled: 1}}
		},
		"a bucket":               func(f *Facts) { f.Source = Source{} },
		"no process":             func(f *Facts) { f.Process = Process{} },
		"unknown settings":       func(f *Facts) { f.Settings = nil },
		"a size is not reported": func(f *Facts) { f.Tiers[1] = Storage{Known: true, Device: 9} },
	} {
		f := healthy()
		change(f)
		if got := Examine(f); len(got) > 0 {
			t.Errorf("%s: %+v", name, got)
		}
	}
}

// Each section of the documentation that a finding names exists.
func TestSections(t *testing.T) {
	text, err := os.ReadFile("../../../docs/troubleshooting.md")
	if err != nil {
		t.Fatal(err)
	}
	anchors := make(map[string]bool)
	for _, m := range regexp.MustCompile(`(?m)^##+ (.*)$`).FindAllStringSubmatch(string(text), -1) {
		anchors["docs/troubleshooting.md#"+strings.ReplaceAll(strings.ToLower(m[1]), " ", "-")] = true
	}
	for _, see := range []string{seeReads, seeSlow, seeTiers, seeNames, seeMount, seePeers, seeNone} {
		if !anchors[see] {
			t.Errorf("there is no %s", see)
		}
	}
}

// Findings are printed with the most urgent first, in lines that fit a terminal.
func TestWrite(t *testing.T) {
	all := []Finding{
		{Note, "version", "another", "", ""},
		{Warning, "tier ssd", "full", strings.Repeat("word ", 20), "docs"},
		{Problem, "clock", "wrong", "Set it.", ""},
	}
	Sort(all)
	var b strings.Builder
	if err := Write(&b, all); err != nil {
		t.Fatal(err)
	}
	want := `problem  clock     wrong
                   → Set it.
warning  tier ssd  full
                   → word word word word word word word word word word word word word word word
                     word word word word word
                     See docs.
note     version   another
`
	if got := b.String(); got != want {
		t.Errorf("got\n%swant\n%s", got, want)
	}
	if Count(all, Problem) != 1 || Count(all, Note) != 1 {
		t.Error("the counts are wrong")
	}
}
