package doctor

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/dustin/go-humanize"
	"golang.org/x/sys/unix"

	"github.com/milkweedfs/milkweed/cmd/internal/check"
	"github.com/milkweedfs/milkweed/cmd/internal/config"
	"github.com/milkweedfs/milkweed/cmd/internal/control"
	"github.com/milkweedfs/milkweed/cmd/internal/paths"
	"github.com/milkweedfs/milkweed/drivers"
	"github.com/milkweedfs/milkweed/fs"
	"github.com/milkweedfs/milkweed/placement"
)

// The sections of the documentation.
const (
	seeReads = "docs/troubleshooting.md#a-job-cannot-read"
	seeSlow  = "docs/troubleshooting.md#the-job-is-slow"
	seeTiers = "docs/troubleshooting.md#tiers"
	seeNames = "docs/troubleshooting.md#names-and-changes"
	seeMount = "docs/troubleshooting.md#mounting-and-unmounting"
	seePeers = "docs/troubleshooting.md#peers"
	seeNone  = "docs/troubleshooting.md#none-of-these"
)

// Examine returns the findings about a mount, the most urgent first.
func Examine(f *Facts) []Finding {
	var all []Finding
	for _, rule := range []func(*Facts) []Finding{
		draining, faults, stuck, tierHealth, corrupt, mismatched, source, generation, rateLimits, throttled, refused, oddStore, storeClock, clock,
		full, laterEpochs, partly, parts, unopened, recent, gone, storages, descriptors, threads, limits, memory, waits, passthrough, mode, readAhead,
		plan, scrubs, sweep, peers, version, missing,
	} {
		all = append(all, rule(f)...)
	}
	Sort(all)
	return all
}

// one returns a list of one finding. The remedy and the section may be "".
func one(s Severity, subject, remedy, see, format string, args ...any) []Finding {
	return []Finding{{Severity: s, Subject: subject, Seen: fmt.Sprintf(format, args...), Remedy: remedy, See: see}}
}

func size(n int64) string { return humanize.IBytes(uint64(max(0, n))) }

// plural formats a number of things, as in "1 file" and "2,000 files".
func plural(n int64, one, many string) string {
	if n == 1 {
		return "1 " + one
	}
	return humanize.Comma(n) + " " + many
}

func files(n int64) string { return plural(n, "file", "files") }

// seconds formats a time in seconds.
func seconds(s float64) string { return short(time.Duration(s * float64(time.Second))) }

// short formats a duration with about two digits.
func short(d time.Duration) string {
	unit := time.Microsecond
	for d >= 100*unit && unit < time.Second {
		unit *= 10
	}
	return d.Round(unit).String()
}

// command formats a command on the mount.
func (f *Facts) command(words string) string {
	return "`milkweed " + words + " " + paths.Printable(f.Status.MountPoint) + "`"
}

func draining(f *Facts) []Finding {
	if !f.Status.Draining {
		return nil
	}
	var users []string
	for _, n := range f.Status.Elsewhere {
		users = append(users, paths.Printable(n.String()))
	}
	return one(Warning, "mount", "End these processes, or end the mount for all of them with "+f.command("umount --force")+".", seeMount,
		"it was unmounted and drains: it reads the source only, and is in use by %s", cmp.Or(strings.Join(users, "; "), "open files"))
}

// faults reports on faults of the daemon itself.
func faults(f *Facts) (all []Finding) {
	log := "Read " + cmp.Or(paths.Printable(f.Settings["log.file"]), "its log") + "; " + f.command("debug") + " makes an archive for a report."
	if n := f.Status.Panics; n > 0 {
		all = append(all, one(Problem, "daemon", log, seeNone, "%s failed one operation each; each is a bug", plural(n, "panic", "panics"))...)
	}
	if n := f.Status.Crashes; n > 0 {
		all = append(all, one(Problem, "daemon", log, seeNone, "mounted again after %s", plural(n, "crash", "crashes"))...)
	}
	if n := f.Status.LogLost; n > 0 {
		all = append(all, one(Warning, "log", "Make room on its disk, or set log.file to a file on another one.", seeNone,
			"%s missing in it, because it could not be written: its disk was full, or did not answer", plural(n, "message is", "messages are"))...)
	}
	return all
}

func stuck(f *Facts) []Finding {
	n := f.Status.StuckRequests
	if n == 0 {
		return nil
	}
	return one(Problem, "requests", "Find what hangs: see the findings about the source and the tiers, and the stacks in the log.", seeReads,
		"%s for more than a minute, the oldest for %s", plural(n, "request of a program waits", "requests of programs wait"), seconds(f.Status.OldestRequestSeconds))
}

// tierHealth reports on tiers that do not work, as the daemon or this process sees it.
func tierHealth(f *Facts) (all []Finding) {
	for i, t := range f.Status.Tiers {
		subject, path := "tier "+t.Name, paths.Printable(t.Path)
		hangs := errors.Is(f.Tiers[i].Err, ErrNoAnswer)
		remedy := fmt.Sprintf("Repair it; the tier is used again by itself. `dmesg` and `df %s` show the state of the disk. "+
			"Or mount without this tier.", path)
		seen := ""
		switch {
		case t.Health == control.Down:
			seen = "down: " + t.Reason
		case t.Health == control.Degraded:
			seen = "degraded: " + t.Reason
		case t.Health == control.Full && !hangs:
			all = append(all, one(Warning, subject, fmt.Sprintf("Make room there, raise the limit if one is named, or mount without this tier: "+
				"`df %s` and `df -i %s` show what is used. Copies are then made again.", path, path), seeTiers, "%s; %s had no room", t.Reason, files(f.Status.Placement.Skipped))...)
			continue
		case hangs:
			seen = "the daemon has not noticed yet"
		default:
			if n := t.Errors; n > 0 {
				all = append(all, one(Note, subject, "If the number grows, look at the disk with `dmesg`.", seeTiers,
					"%s failed since the mount; it works now", plural(n, "operation", "operations"))...)
			}
			continue
		}
		if hangs {
			seen = fmt.Sprintf("its file system hangs: %s gives no answer within %v; %s", path, Timeout, seen)
			remedy = fmt.Sprintf("Check the disk, or the server, of %s; `dmesg` names operations that hang. "+
				"The tier is used again when it answers. Or mount without this tier.", path)
		}
		severity := Problem
		if t.Health == control.Degraded && !hangs {
			severity = Warning
		}
		all = append(all, one(severity, subject, remedy, seeTiers, "%s", seen)...)
	}
	return all
}

func corrupt(f *Facts) (all []Finding) {
	for _, t := range f.Status.Tiers {
		if n := t.Corrupt; n > 0 {
			all = append(all, one(Problem, "tier "+t.Name, "Compare all copies with "+f.command("scrub")+". If it finds more, replace the disk or the memory.", seeTiers,
				"%s had other bytes than were written, and %s removed; the files are read from elsewhere", plural(n, "copy", "copies"), wereOrWas(n))...)
		}
	}
	return all
}

func wereOrWas(n int64) string {
	if n == 1 {
		return "was"
	}
	return "were"
}

func mismatched(f *Facts) []Finding {
	n := f.Status.Placement.Mismatched
	if n == 0 {
		return nil
	}
	return one(Problem, "manifest",
		fmt.Sprintf("`milkweed check --manifest %s %s` names them. Restore them, or write a new manifest and mount with it.",
			paths.Printable(f.Status.Source.Manifest), paths.Printable(f.Status.Source.Path)), seeReads,
		"%s of the source %s not as the manifest says, and cannot be read", files(n), isOrAre(n))
}

func isOrAre(n int64) string {
	if n == 1 {
		return "is"
	}
	return "are"
}

// slowSource is the time of one operation from which on a source is slow. That of a parallel file
// system is below 1 ms at rest, and that of NFS in one building, too.
const slowSource = 10 * time.Millisecond

// source reports on a source that fails, hangs or is slow.
func source(f *Facts) (all []Finding) {
	const subject = "source"
	s, path := f.Source, paths.Printable(f.Status.Source.Path)
	switch {
	case errors.Is(s.Err, ErrNoAnswer):
		all = append(all, one(Problem, subject, "Check its server and the network; `dmesg` may name them. Files with a copy stay readable.", seeReads,
			"it hangs: %s gives no answer within %v", path, Timeout)...)
	case s.Gone: // rule gone reports it
	case errors.Is(s.Err, unix.ENOENT), errors.Is(s.Err, unix.EACCES), errors.Is(s.Err, unix.EPERM):
		// The daemon may have another mount namespace, or other rights.
		all = append(all, one(Note, subject, "", "", "not measured: %v", s.Err)...)
	case s.Err != nil:
		all = append(all, one(Problem, subject, "Check its server, and whether other programs can list it. Files with a copy stay readable.", seeReads, "%v", s.Err)...)
	}
	if n := f.Status.Source.Errors; n > 0 {
		reader := "dd at " + path
		if f.Status.Source.Requests != nil {
			reader = "the vendor's own tools"
		}
		all = append(all, one(Warning, subject, "Look for the messages of the source in the log, and read these files with "+reader+".", seeReads,
			"%s failed since the mount", plural(n, "operation", "operations"))...)
	}
	if n := f.Status.Fills.Stalled; n > 0 {
		all = append(all, one(Warning, subject, "Check the load of its server and the network.", seeSlow,
			"%s for more than a second", plural(n, "request waits", "requests wait"))...)
	}
	if detail, remedy := s.Links.Advice(); detail != "" && f.Settings["source.manifest"] == "" { // which may have others
		all = append(all, one(Warning, subject, remedy, seeNames, "%s", detail)...)
	}
	if s.Image != "" && f.Status.Generation == "" {
		all = append(all, one(Note, subject, check.ImageRemedy, seeNames,
			"%s: if it is replaced while nothing is mounted, files of the same size and time are taken for unchanged", s.Image)...)
	}
	if s.slowest() < slowSource {
		return all
	}
	severity, used := Warning, ""
	if e, later := f.lastEpoch(); later {
		if missed, opens := f.misses(e); missed == 0 && opens > 0 {
			severity, used = Note, "; the last epoch did not read it"
		}
	}
	if n := f.Status.Fills.SourceSlowdown; n >= 2 && used == "" {
		used = fmt.Sprintf("; requests take %.1f × the time of an idle source, so that its load is a part of that", n)
	}
	return append(all, one(severity, subject, f.hideLatency(), seeSlow, "slow: %s to open a file, %s to read its beginning (median of %s)%s",
		short(s.Open), short(s.Read), files(int64(s.Files)), used)...)
}

// generation reports on a generation that the source no longer has.
func generation(f *Facts) []Finding {
	if !f.Status.GenerationGone {
		return nil
	}
	remedy := "`milkweed generations` lists those that it has; show one with `milkweed switch`."
	if f.Linked != "" && f.Linked != f.Status.Generation {
		remedy = "Show the one to which the link of the source points with " + f.command("switch "+paths.Printable(f.Linked)) + "."
	}
	return one(Problem, "generation", remedy, seeNames, "the source no longer has %s, which the mount shows; files with a complete copy stay readable, and others fail with ESTALE",
		paths.Printable(f.Status.Generation))
}

// hideLatency is the remedy for a source with a high latency.
func (f *Facts) hideLatency() string {
	ways := []string{"copy the dataset before the job starts with " + f.command("warmup")}
	if f.Status.Plan.StreamCount == 0 {
		ways = append(ways, "give the order of the job's files with "+f.command("plan"))
	}
	ways = append(ways, "let more workers of the job read at once")
	if f.Status.Peers == nil {
		ways = append(ways, "share the tiers of several nodes with `mount --peers`")
	}
	last := len(ways) - 1
	text := strings.Join(ways[:last], "; ") + "; or " + ways[last] + "."
	return strings.ToUpper(text[:1]) + text[1:]
}

// isSet reports whether a setting is a limit.
func isSet(value string) bool { return value != "" && value != "0" }

// rateLimits reports on limits of the user for which readers wait.
func rateLimits(f *Facts) (all []Finding) {
	w := f.worstWait()
	if w.level != "source" || w.share < mostWaits {
		return nil
	}
	for _, key := range []string{"source.bandwidth", "source.operations"} {
		if value := f.Settings[key]; isSet(value) {
			all = append(all, one(Warning, "source", "Raise "+key+", or remove it, and mount again.", seeSlow,
				"%s = %s limits this mount, and readers have waited %s for the source %s", key, value, seconds(w.seconds), w.when)...)
		}
	}
	return all
}

// throttled reports on a bucket that refuses requests because of their rate.
func throttled(f *Facts) []Finding {
	q := f.Status.Source.Requests
	if q == nil {
		return nil
	}
	requests := q.Lists + q.Gets + q.Others
	if q.Throttled*100 < max(1, requests) {
		return nil
	}
	return one(Warning, "source", "Limit the rate with source.operations, raise the quota of the bucket, or share it between nodes with `mount --peers`.", seeSlow,
		"the store has refused %s of %s, because there were too many", humanize.Comma(q.Throttled), plural(requests, "request", "requests"))
}

// refused reports on a bucket whose store refuses the credentials, or some objects.
func refused(f *Facts) (all []Finding) {
	q := f.Status.Source.Requests
	if q == nil {
		return nil
	}
	if q.Refused != "" {
		all = append(all, one(Problem, "source", q.RefusedRemedy, seeReads, "the store has refused the credentials for %s: %s; files with a copy stay readable",
			seconds(q.RefusedSeconds), q.Refused)...)
	}
	if q.Archived > 0 {
		all = append(all, one(Warning, "source", "Restore them. They are requested again after 5 minutes, or after `milkweed refresh FILE`. The log names the first one, and all with log.level = \"debug\".", seeReads,
			"%s archived, and cannot be read", plural(q.Archived, "object is", "objects are"))...)
	}
	if q.Denied > 0 {
		all = append(all, one(Warning, "source", "Permit the credentials of this mount to read them; the log names the first one, and all with log.level = \"debug\".", seeReads,
			"the store has denied access to %s", plural(q.Denied, "object", "objects"))...)
	}
	return all
}

// oddStore reports on a bucket whose store deviates from its protocol.
func oddStore(f *Facts) (all []Finding) {
	if q := f.Status.Source.Requests; q != nil {
		for _, text := range q.Oddities {
			all = append(all, one(Warning, "source", "Use a manifest for a dataset that is overwritten in place; docs/SEMANTICS.md has what a version of an object is.", seeNames,
				"the store deviates from its protocol: %s", text)...)
		}
	}
	return all
}

// storeClock reports on a clock for which a store has refused requests.
func storeClock(f *Facts) []Finding {
	if q := f.Status.Source.Requests; q != nil && q.ClockOffsetSeconds != 0 {
		return one(Warning, "clock", check.ClockRemedy, seeNames, "%s", q.Clock())
	}
	return nil
}

// clock compares the clock of the source with that of this machine, by change times in the future.
func clock(f *Facts) []Finding {
	ahead := time.Duration(f.Status.Source.ClockAheadSeconds * float64(time.Second))
	file := ""
	if f.Source.Ahead > ahead {
		ahead, file = f.Source.Ahead, f.Source.Future
	}
	skew, _ := time.ParseDuration(f.Settings["source.clock_skew"]) // 0 if it is not known
	if ahead <= max(skew, time.Second) {
		return nil
	}
	seen := fmt.Sprintf("the clock of this machine is %s or more behind that of the source", ahead.Round(time.Second))
	if file != "" {
		seen += fmt.Sprintf(": %s has changed in the future", paths.Printable(file))
	}
	if f.Unsynchronized {
		seen += "; the kernel says that this clock is not synchronized"
	}
	severity := Warning
	if ahead > placement.MaxClockAhead {
		severity = Problem
		seen += "; a file that is rewritten in the same second may be missed"
	}
	return one(severity, "clock", "Compare `date -u` here and on the file server, set the wrong one, keep it right with chrony, and mount again.", seeNames, "%s", seen)
}

// fullFrom is the share of a quota from which on a tier is full.
const fullFrom = 0.95

// isFull reports whether a tier has no room for a file of the mean size of its copies.
func isFull(t control.Tier) bool {
	left := t.QuotaBytes - t.UsedBytes
	return t.QuotaBytes > 0 && (float64(t.UsedBytes) >= fullFrom*float64(t.QuotaBytes) || t.Files > 0 && left < t.UsedBytes/t.Files)
}

// full reports on files for which no tier has room.
func full(f *Facts) []Finding {
	skipped := f.Status.Placement.Skipped
	if skipped == 0 || len(f.Status.Tiers) == 0 {
		return nil
	}
	if slices.ContainsFunc(f.Status.Tiers, func(t control.Tier) bool { return t.Health == control.Full }) { // rule tierHealth reports it
		return nil
	}
	missed := ""
	if e, later := f.lastEpoch(); later {
		if n, opens := f.misses(e); n > 0 {
			missed = fmt.Sprintf("; in the last epoch, %s of %s went to the source", humanize.Comma(n), plural(opens, "open", "opens"))
		}
	}
	i := slices.IndexFunc(f.Status.Tiers, func(t control.Tier) bool { return t.Health != control.Down && !isFull(t) })
	if i >= 0 {
		t := f.Status.Tiers[i]
		return one(Note, "tier "+t.Name, "A file must fit into one tier: files that are larger are read from the source. If a quota was raised since, the others are copied when they are opened again, or by `milkweed warmup`.", seeSlow,
			"%s of %s used; %s had no room when they were opened%s", size(t.UsedBytes), size(t.QuotaBytes), files(skipped), missed)
	}
	last := len(f.Status.Tiers) - 1 // the largest, as a rule
	var used []string
	for _, t := range f.Status.Tiers {
		if t.Health == control.Down {
			used = append(used, t.Name+" is down")
			continue
		}
		used = append(used, fmt.Sprintf("%s of %s used in %s", size(t.UsedBytes), size(t.QuotaBytes), t.Name))
	}
	subject := "tiers"
	if last == 0 {
		subject = "tier " + f.Status.Tiers[0].Name
	}
	return one(Warning, subject, f.makeRoom(last), seeSlow, "full: %s; %s had no room, and %s read from the source%s",
		strings.Join(used, ", "), files(skipped), isOrAre(skipped), missed)
}

// makeRoom is the remedy for a full tier.
func (f *Facts) makeRoom(tier int) string {
	t := f.Status.Tiers[tier]
	raise := fmt.Sprintf("Raise the quota of %s", t.Name)
	if s := f.Tiers[tier]; s.Known && s.Available > t.QuotaBytes/10 {
		raise += fmt.Sprintf(" (its file system has %s available): quota = %q at most, and mount again", size(s.Available), strings.ReplaceAll(size(t.UsedBytes+s.Available*9/10), " ", ""))
	} else {
		raise = "Add a tier on another disk, and mount again"
	}
	room := "make room with `milkweed evict PATH` or, for files that the source has no longer, " + f.command("refresh --prune")
	if isSet(f.Settings["placement.window"]) {
		return raise + "; or " + room + "."
	}
	return raise + "; or " + room + `; or, for a dataset that never fits, use a plan and placement.window = "10%".`
}

// laterEpochs reports on an epoch after the first one that read the source, though the tiers have
// room.
func laterEpochs(f *Facts) []Finding {
	e, later := f.lastEpoch()
	if !later || f.Status.Placement.Skipped > 0 {
		return nil
	}
	missed, opens := f.misses(e)
	if missed*100 < opens || missed == 0 {
		return nil
	}
	remedy, why := "`milkweed where FILE` shows why a file has no copy.", ""
	switch {
	case slices.ContainsFunc(f.Status.Tiers, func(t control.Tier) bool { return t.Health == control.Down }):
		remedy, why = "See the finding about the tier that is down.", "a tier is down"
	case f.Status.Placement.Failed > 0:
		remedy, why = "The log says why.", plural(f.Status.Placement.Failed, "copy has", "copies have")+" failed"
	case f.Status.Source.RacyFiles > 0:
		remedy, why = "They are copied when they have not changed for a while.", files(f.Status.Source.RacyFiles)+" changed a moment ago"
	}
	if why != "" {
		why = ": " + why
	}
	return one(Warning, "epochs", remedy, seeSlow, "%s of %s in the last epoch went to the source, though others were before it%s",
		humanize.Comma(missed), plural(opens, "open", "opens"), why)
}

// storages reports on file systems that have less room than the quotas of their tiers.
func storages(f *Facts) (all []Finding) {
	seen := make(map[uint64]bool)
	for i, s := range f.Tiers {
		if s.Err != nil && !errors.Is(s.Err, ErrNoAnswer) && f.Status.Tiers[i].Health != control.Down {
			all = append(all, one(Note, "tier "+f.Status.Tiers[i].Name, "", "", "not examined: %v", s.Err)...)
		}
		if !s.Known || s.Size == 0 || seen[s.Device] {
			continue
		}
		seen[s.Device] = true
		var names []string
		var left int64 // of the quotas
		for j, other := range f.Tiers {
			if t := f.Status.Tiers[j]; other.Known && other.Device == s.Device {
				names = append(names, t.Name)
				left += max(0, t.QuotaBytes-t.UsedBytes)
			}
		}
		if float64(s.Available) >= fullFrom*float64(left) {
			continue
		}
		subject, which, remedy := "tier "+names[0], "its quota allows", "Remove other files there, or reduce the quota."
		if len(names) > 1 {
			subject, which = "tiers "+strings.Join(names, ", "), "they share a file system, and their quotas allow"
			remedy = "Reduce the quotas to its size together, or move a tier to another file system."
		}
		all = append(all, one(Warning, subject, remedy, seeTiers, "%s %s more, but the file system has %s available", which, size(left), size(s.Available))...)
	}
	return all
}

// fewFiles is the limit of open files below which doctor warns, whatever is open now. The daemon keeps
// idle files of the source open, up to half of the limit.
const fewFiles = 8192

// descriptors reports on a limit of open files that is low, or nearly reached.
func descriptors(f *Facts) []Finding {
	p := f.Process
	used := float64(p.Open) / float64(p.Soft)
	if !p.Known || p.Soft >= fewFiles && used < 0.75 {
		return nil
	}
	severity, seen := Warning, ""
	if used >= 0.9 {
		severity, seen = Problem, "; opens wait when none is left"
	}
	return one(severity, "open files", check.RaiseFiles+" Then mount again.", seeMount,
		"the daemon may open %s (soft limit; the hard one is %s), and %d are open%s", plural(int64(min(p.Soft, math.MaxInt64)), "file", "files"), limit(p.Hard), p.Open, seen)
}

// threads reports on a limit of threads that makes calls wait, or is nearly reached, perhaps by a job.
func threads(f *Facts) []Finding {
	p := f.Process
	if n := f.Status.WaitingCalls; n > 0 && p.ThreadLimit != "" {
		return one(Problem, "threads", check.RaiseThreads, seeMount,
			"%s, and %d are left; %s for others to end, since each may need a thread", p.ThreadLimit, p.Threads,
			plural(n, "call of the source or a tier waits", "calls of the source or a tier wait"))
	}
	if !p.Known || p.Threads >= check.SpareThreads {
		return nil
	}
	return one(Warning, "threads", check.RaiseThreads, seeMount,
		"%s, and %d are left; calls of the source and the tiers wait for others if more of them block", p.ThreadLimit, p.Threads)
}

// limits reports on limits at which the daemon ends, or does less.
func limits(f *Facts) (all []Finding) {
	for _, l := range f.Process.Limits {
		all = append(all, one(Warning, check.LimitsName, l.Remedy, seeMount, "%s", l.Effect)...)
	}
	return all
}

func limit(n uint64) string {
	if n == unix.RLIM_INFINITY {
		return "unlimited"
	}
	return humanize.Comma(int64(min(n, math.MaxInt64)))
}

// memory reports on the memory limit of the control group.
func memory(f *Facts) []Finding {
	p := f.Process
	if !p.Known || p.Memory == math.MaxInt64 {
		return nil
	}
	switch {
	case p.MemoryLeft < p.Memory/20:
		return one(Problem, "memory", check.RaiseMemory, "", "%s of the %s that the control group permits are left; the kernel kills a process when none is", size(p.MemoryLeft), size(p.Memory))
	case p.Memory < config.SmallMemory:
		return one(Warning, "memory", check.RaiseMemory, "", "the control group permits %s; below %s the kernel reads little at a time, and few workers copy", size(p.Memory), size(config.SmallMemory))
	}
	return nil
}

// Waits are worth a finding if they are of one cause for the most part, and take a good part of the time of
// one reader.
const (
	mostWaits = 0.5
	muchWait  = 0.25
)

// A wait is the cause for which readers have waited most.
type wait struct {
	level, cause string
	waits        int64
	seconds      float64
	share        float64 // of all waits
	first        bool    // it was in the first epoch, or there is none
	when         string
}

// worstWait returns the longest of the waits in the last epoch or, without epochs, since the start. The last epoch is
// the present one, or the one before it if nobody has waited in the present one yet. It is the zero value if
// readers hardly waited.
func (f *Facts) worstWait() (worst wait) {
	total, time := 0.0, f.Status.UptimeSeconds
	add := func(level, cause string, waits int64, seconds float64) {
		total += seconds
		if seconds > worst.seconds {
			worst.level, worst.cause, worst.waits, worst.seconds = level, cause, waits, seconds
		}
	}
	worst.first, worst.when = true, "since the mount"
	for i, e := range slices.Backward(f.Status.Epochs) {
		if e.Mixed || len(e.Waits) == 0 && !e.Ended {
			continue
		}
		time, worst.first, worst.when = e.Seconds, f.Status.EpochNumber(i) == 1, "in the last epoch"
		for _, w := range e.Waits {
			add(w.Level, w.Cause, w.Waits, w.Seconds)
		}
		break
	}
	if len(f.Status.Epochs) == 0 {
		for _, w := range f.Status.Waits {
			add(w.Level, w.Cause, w.Waits, w.Seconds)
		}
	}
	if total < 1 || total < muchWait*time {
		return wait{}
	}
	worst.share = worst.seconds / total
	return worst
}

// waits reports on one cause for which readers wait most of the time. In a first epoch that is no
// surprise, and a note.
func waits(f *Facts) []Finding {
	w := f.worstWait()
	if w.share < mostWaits || w.waits == 0 {
		return nil
	}
	what, remedy := "", ""
	switch w.cause {
	case control.Latency:
		what, remedy = "the source to begin an answer", f.hideLatency()
	case control.Bandwidth:
		what, remedy = "the bandwidth of the source", "Copy the dataset before the job starts with "+f.command("warmup")+", or share it between nodes with `mount --peers`."
	case control.FillCause:
		what, remedy = "copies that others had begun", f.hideLatency()
	case control.TierCause:
		what, remedy = "tier "+w.level, "Put a faster tier before it, or mount with mount.mode = \"passthrough\" if files are large."
	case control.PeersCause:
		what, remedy = "other nodes", f.command("peers")+" shows which of them are slow or down."
	}
	severity := Warning
	if w.first {
		severity = Note
	}
	return one(severity, "waits", remedy, seeSlow, "readers have waited %s for %s %s, %.0f%% of all waits (%s each)",
		seconds(w.seconds), what, w.when, 100*w.share, seconds(w.seconds/float64(w.waits)))
}

// enoughOpens is how many opens show the size of the files that a job uses.
const enoughOpens = 32

// meanSize returns the mean size of the files that were opened, and whether it is known.
func (f *Facts) meanSize() (int64, bool) {
	n, bytes := f.opens()
	if n < enoughOpens {
		return 0, false
	}
	return bytes / n, true
}

// best returns the mode that suits files of a mean size, if passthrough works. If the size is near the
// limit between two modes, it reports false.
func best(mean int64) (config.Mode, bool) {
	choose := func(n int64) config.Mode {
		m, _ := check.ChooseMode(config.Auto, true, "", []drivers.Info{{Size: n}})
		return m
	}
	return choose(mean), choose(mean/2) == choose(mean) && choose(2*mean) == choose(mean)
}

// works reports whether the kernel reads the copies in a tier directly, or would in mode passthrough.
func works(f *Facts, t control.Tier) bool {
	return check.PassthroughWorks(config.Mode(f.Status.Mode), t.Passthrough, t.PassthroughReason)
}

// passthrough reports on tiers with large files that the kernel cannot read directly.
func passthrough(f *Facts) (all []Finding) {
	mean, known := f.meanSize()
	if m, clear := best(mean); !known || !clear || m != config.Passthrough {
		return nil
	}
	for _, t := range f.Status.Tiers {
		if works(f, t) || t.Health == control.Down { // rule mode reports the first
			continue
		}
		remedy, severity := check.PassthroughRemedy(t.PassthroughReason), Warning
		if strings.Contains(t.PassthroughReason, fs.ErrKernel.Error()) {
			severity = Note // another kernel is a large change
		}
		all = append(all, one(severity, "tier "+t.Name, remedy, seeSlow, "files are %s on average, and the kernel cannot read them directly: %s", size(mean), t.PassthroughReason)...)
	}
	return all
}

// mode reports on a mode that does not suit the files that were opened.
func mode(f *Facts) []Finding {
	mean, known := f.meanSize()
	want, clear := best(mean)
	now := config.Mode(f.Status.Mode)
	works := slices.ContainsFunc(f.Status.Tiers, func(t control.Tier) bool { return works(f, t) })
	if !known || !clear || want == now || want == config.Passthrough && !works {
		return nil
	}
	remedy := fmt.Sprintf("Mount with mount.mode = %q.", want)
	if set := f.Settings["mount.mode"]; set != "" && set != string(config.Auto) {
		remedy = fmt.Sprintf("Mount with mount.mode = \"auto\" instead of %q.", set)
	}
	return one(Warning, "mode", remedy, seeSlow, "it is %s (%s); the opened files are %s on average, for which %s is faster", now, f.Status.ModeReason, size(mean), want)
}

// readAhead reports on a kernel that sends small reads, because the daemon could not raise its read-ahead.
func readAhead(f *Facts) []Finding {
	mean, known := f.meanSize()
	if f.ReadAhead == 0 || f.ReadAhead >= fs.MaxRequest || !known || mean <= f.ReadAhead || f.Status.Mode == string(config.Passthrough) ||
		f.Process.Memory < config.SmallMemory {
		return nil
	}
	return one(Note, "read-ahead", fmt.Sprintf("As root: `echo %d > %s`.", fs.MaxRequest>>10, f.ReadAheadFile), "",
		"the kernel requests %s at a time, because the daemon may not change that; files are %s on average", size(f.ReadAhead), size(mean))
}

// plan reports on a plan that does not match what the job does.
func plan(f *Facts) (all []Finding) {
	p := f.Status.Plan
	if p.StreamCount == 0 {
		return nil
	}
	show := f.command("plan --show") + " compares it with the job."
	switch {
	case p.Suspended:
		all = append(all, one(Warning, "plan", "Give the order in which the job really reads. "+show, "",
			"the job does not follow it, so that nothing is copied by it: %s of %s were predicted", humanize.Comma(p.Correct), plural(p.Opens, "open", "opens"))...)
	case p.Opens >= enoughOpens && p.Correct*2 < p.Opens:
		all = append(all, one(Warning, "plan", "Check the order, and the lead of the loader (--lead). "+show, "",
			"%s of %s were predicted", humanize.Comma(p.Correct), plural(p.Opens, "open", "opens"))...)
	}
	if n := p.Missing + p.Rejected; n > 0 {
		all = append(all, one(Warning, "plan", "Write the paths relative to the mount point.", "", "%s of it %s not in the mount", plural(n, "path", "paths"), isOrAre(n))...)
	}
	return all
}

// scrubs reports on scrubs that failed or are late.
func scrubs(f *Facts) (all []Finding) {
	s := f.Status.Scrub
	if l := s.Last; l != nil {
		if n := l.CopiesFailed; n > 0 {
			all = append(all, one(Warning, "scrub", "Look at the disk with `dmesg`, and run "+f.command("scrub")+" again.", seeTiers,
				"the last one could not read %s", plural(n, "copy", "copies"))...)
		}
		for _, t := range l.Skipped {
			all = append(all, one(Note, "scrub", "Run "+f.command("scrub")+" when the tier works.", "", "the last one did not verify tier %s: %s", t.Tier, t.Reason)...)
		}
	}
	interval, err := time.ParseDuration(f.Settings["scrub.interval"])
	if err != nil || interval <= 0 || s.InProgress {
		return all
	}
	last := f.Status.Since
	if s.LastEnd > 0 {
		last = time.Unix(s.LastEnd, 0)
	}
	now := f.Status.Since.Add(time.Duration(f.Status.UptimeSeconds * float64(time.Second)))
	if age := now.Sub(last); age > 2*interval {
		all = append(all, one(Warning, "scrub", "Raise scrub.rate, or run "+f.command("scrub")+".", "",
			"the last complete one, or the mount, is %s ago, and scrub.interval is %v", age.Round(time.Minute), interval)...)
	}
	return all
}

// sweep reports on changes of the source that are seen late.
func sweep(f *Facts) []Finding {
	window, err := time.ParseDuration(f.Settings["mount.consistency"])
	oldest := time.Duration(f.Status.Sweep.OldestSeconds) * time.Second
	if err != nil || window <= 0 || oldest <= 2*window {
		return nil
	}
	return one(Note, "changes", "Set mount.consistency to that time, or run "+f.command("refresh")+" after a change.", seeNames,
		"a change of the source is seen after up to %s, and not within mount.consistency = %v: too many names are in use", oldest, window)
}

// peers reports on nodes that do not share their tiers, one finding for each cause.
func peers(f *Facts) (all []Finding) {
	p := f.Status.Peers
	if p == nil {
		return nil
	}
	if p.Self == "" {
		all = append(all, one(Warning, "peers", "Add this node to the roster of all nodes, or set peers.name.", seePeers, "this node is not in the roster, and only reads from the others")...)
	}
	type cause struct{ problem, remedy string }
	names := make(map[cause][]string)
	var order []cause
	for _, n := range f.Peers {
		c := cause{n.Problem, n.Remedy}
		if n.Problem == "" {
			continue
		}
		if names[c] == nil {
			order = append(order, c)
		}
		names[c] = append(names[c], paths.Printable(n.Name))
	}
	for _, c := range order {
		all = append(all, one(Warning, "peers", c.remedy, seePeers, "%s: %s", check.SomeNames(names[c]), paths.Printable(c.problem))...)
	}
	if p.Failovers > 0 && len(order) == 0 {
		all = append(all, one(Note, "peers", "", seePeers, "%s since the mount, and all nodes answer now", plural(p.Failovers, "read went on elsewhere", "reads went on elsewhere"))...)
	}
	return all
}

func version(f *Facts) []Finding {
	if f.Status.Milkweed == f.Version {
		return nil
	}
	return one(Note, "version", "Unmount and mount again when no job runs. The copies are used.", "", "the daemon is milkweed %s, and this command %s", f.Status.Milkweed, f.Version)
}

// missing reports on facts that could not be had.
func missing(f *Facts) (all []Finding) {
	for _, m := range f.Missing {
		all = append(all, one(Note, m.Subject, "", "", "not examined: %v", m.Err)...)
	}
	return all
}
