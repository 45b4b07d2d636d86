package main

import (
	"archive/tar"
	"bytes"
	"cmp"
	"compress/gzip"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"github.com/milkweedfs/milkweed/cmd/internal/config"
	"github.com/milkweedfs/milkweed/cmd/internal/control"
	"github.com/milkweedfs/milkweed/cmd/internal/exit"
	"github.com/milkweedfs/milkweed/cmd/internal/mounts"
	"github.com/milkweedfs/milkweed/cmd/internal/redact"
	"github.com/milkweedfs/milkweed/drivers/panics"
)

func newDebug() *cobra.Command {
	var flags debugFlags
	c := &cobra.Command{
		Use:   "debug [PATH]",
		Short: "Write an archive with all that helps to find the cause of a fault",
		Long: `Debug writes one archive, milkweed-debug-TIME.tar.gz in the current directory or
the FILE of --output, with the status, the configuration, the metrics, the plan
and the peers of a mount, the stacks and the memory profile of its daemon, the
end of its log, and facts about the process, the kernel and the file systems of
the source and the tiers. Only its owner can read it. An existing file is not
replaced.

PATH is a mount point or a path below one. Without it, debug needs exactly one
mount. If the daemon does not answer, or something hangs, the archive has the
rest: README.txt in it says what is missing and why, and debug exits with 8.

The archive has no content of files, and no credentials. It has names of files,
directories, buckets and nodes. With --redact these are replaced by pseudonyms,
which are the same in the whole archive: look at it before you give it away.
The metrics and the memory profile are left out then; status.json has the
numbers.

With --json, debug prints an object: file, bytes, redacted, and parts, an array
with name, bytes, and error if the part is missing.`,
		Example: `  milkweed debug /mnt/imagenet
  milkweed debug --redact -o report.tar.gz /mnt/imagenet && tar tzf report.tar.gz`,
		Args:              usage(cobra.MaximumNArgs(1)),
		ValidArgsFunction: completeMounts,
		RunE: func(c *cobra.Command, args []string) error {
			point, _, err := warmupNames(args)
			if err != nil {
				return err
			}
			return flags.run(c.Context(), c.OutOrStdout(), point)
		},
	}
	c.Flags().StringVarP(&flags.output, "output", "o", "", "write the archive to `FILE`")
	c.Flags().BoolVar(&flags.redact, "redact", false, "replace names of files, directories, buckets and nodes")
	c.Flags().BoolVar(&flags.asJSON, "json", false, "print the result as JSON")
	return c
}

// debugFlags are the flags of the command debug.
type debugFlags struct {
	output         string
	redact, asJSON bool
}

// A debugPart is one file of the archive.
type debugPart struct {
	Name  string `json:"name"`
	Bytes int    `json:"bytes"`
	Error string `json:"error,omitempty"` // why it is missing

	content []byte
}

// A debugResult is the result of the command debug.
type debugResult struct {
	File     string      `json:"file"`
	Bytes    int64       `json:"bytes"`
	Redacted bool        `json:"redacted"`
	Parts    []debugPart `json:"parts"`
}

func (flags debugFlags) run(ctx context.Context, stdout io.Writer, point string) error {
	now := time.Now()
	file := cmp.Or(flags.output, "milkweed-debug-"+now.UTC().Format("20060102-150405")+".tar.gz")
	f, err := os.OpenFile(file, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return &exit.Error{Code: exit.Usage, Err: err, Remedy: "Name a new file in a directory that may be written, with --output."}
	}
	r := debugResult{File: file, Redacted: flags.redact}
	r.Parts = collect(ctx, point, flags.redact)
	err = errors.Join(writeArchive(f, now, r.readme(now), r.Parts), f.Close())
	if err == nil {
		err = ctx.Err()
	}
	if err != nil {
		os.Remove(file)
		return err
	}
	if info, err := os.Stat(file); err == nil {
		r.Bytes = info.Size()
	}
	if flags.asJSON {
		err = printJSON(stdout, r)
	} else {
		err = r.write(stdout)
	}
	if n := r.missing(); err == nil && n > 0 {
		err = &exit.Error{
			Code: exit.Incomplete, Err: fmt.Errorf("%s of the archive could not be collected", plural(int64(n), "part", "parts")),
			Remedy: "The archive has the rest, and README.txt in it says why.",
		}
	}
	return err
}

// missing returns the number of parts that could not be collected.
func (r debugResult) missing() (n int) {
	for _, p := range r.Parts {
		if p.Error != "" {
			n++
		}
	}
	return n
}

func (r debugResult) write(w io.Writer) error {
	for _, p := range r.Parts {
		if p.Error != "" {
			fmt.Fprintf(w, "%s: %s\n", p.Name, p.Error)
		}
	}
	names := "with names of files: --redact replaces them"
	if r.Redacted {
		names = "names are replaced: look at it before you give it away"
	}
	_, err := fmt.Fprintf(w, "%s: %s in %s, %s\n", text(r.File), size(r.Bytes), files(int64(len(r.Parts)-r.missing())), names)
	return err
}

// readme describes the archive.
func (r debugResult) readme(now time.Time) []byte {
	var b bytes.Buffer
	fmt.Fprintf(&b, "An archive of milkweed debug, made at %s with %s.\n", now.UTC().Format(time.RFC3339), thisBuild())
	if r.Redacted {
		b.WriteString("Names are replaced by pseudonyms, ~ and ten digits.\n")
	}
	b.WriteByte('\n')
	for _, p := range r.Parts {
		if p.Error != "" {
			fmt.Fprintf(&b, "%-16s missing: %s\n", p.Name, p.Error)
		} else {
			fmt.Fprintf(&b, "%-16s %d bytes\n", p.Name, p.Bytes)
		}
	}
	return b.Bytes()
}

// writeArchive writes the parts that were collected.
func writeArchive(w io.Writer, now time.Time, readme []byte, parts []debugPart) error {
	z := gzip.NewWriter(w)
	t := tar.NewWriter(z)
	for _, p := range append([]debugPart{{Name: "README.txt", content: readme}}, parts...) {
		if p.Error != "" {
			continue
		}
		h := &tar.Header{Name: "milkweed-debug/" + p.Name, Mode: 0o600, Size: int64(len(p.content)), ModTime: now, Format: tar.FormatPAX}
		if err := t.WriteHeader(h); err != nil {
			return err
		}
		if _, err := t.Write(p.content); err != nil {
			return err
		}
	}
	return errors.Join(t.Close(), z.Close())
}

// partTimeout bounds the time that one part of the archive takes.
const partTimeout = 10 * time.Second

// maxLog is how much of the end of a log the archive has, in bytes.
const maxLog = 1 << 20

// A collector collects the parts of an archive.
type collector struct {
	ctx      context.Context
	redactor *redact.Redactor // nil: names stay
	parts    []debugPart
}

// A partSource is where a part comes from.
type partSource struct {
	name string
	get  func(context.Context) ([]byte, error)
	hide func([]byte) ([]byte, error) // replaces names; nil: it has none
}

// collect returns the parts for a mount. What does not answer in time has an error.
func collect(ctx context.Context, point string, redacted bool) []debugPart {
	c := &collector{ctx: ctx}
	if redacted {
		c.redactor = redact.New()
	}
	client, err := control.Dial(ctx, point)
	if err == nil {
		defer client.Close()
	}
	get := func(path string) func(context.Context) ([]byte, error) {
		return func(ctx context.Context) ([]byte, error) {
			if err != nil {
				return nil, err
			}
			return client.Get(ctx, path)
		}
	}
	sources := []partSource{
		{"status.json", get("/v1/status"), c.hideStatus},
		{"config.json", get("/v1/config"), c.hideSettings},
		{"plan.json", get("/v1/plan"), c.hideAll},
		{"peers.json", get("/v1/peers"), c.hideAll},
		{"goroutines.txt", get("/debug/pprof/goroutine?debug=2"), nil},
	}
	if !redacted {
		sources = append(sources,
			partSource{"metrics.txt", get("/metrics"), nil},
			partSource{"heap.pprof", get("/debug/pprof/heap"), nil}) // it has the path of the program
	}
	answers := c.add(sources)
	var s control.Status
	json.Unmarshal(answers[0], &s) // without an answer, less is known below
	var values []config.Setting
	json.Unmarshal(answers[1], &values)
	c.add([]partSource{
		{"log.txt", func(context.Context) ([]byte, error) { return endOfLog(values) }, c.hideLog},
		{"process.txt", func(context.Context) ([]byte, error) { return processFacts(s.PID) }, nil},
		{"kernel.txt", kernelFacts, nil},
		{"storage.json", func(context.Context) ([]byte, error) { return storageFacts(s) }, nil},
	})
	return c.parts
}

// add collects parts at the same time, and returns their content with all names.
func (c *collector) add(sources []partSource) (contents [][]byte) {
	ctx, cancel := context.WithTimeout(c.ctx, partTimeout)
	defer cancel()
	type result struct {
		content []byte
		err     error
	}
	results := make([]chan result, len(sources))
	for i, s := range sources {
		results[i] = make(chan result, 1)
		go func() { // a file on a disk that hangs cannot be interrupted
			var r result
			r.err = panics.Do(func() (err error) {
				r.content, err = s.get(ctx)
				return err
			})
			results[i] <- r
		}()
	}
	for i, s := range sources {
		var r result
		select {
		case r = <-results[i]:
		case <-ctx.Done():
			r.err = fmt.Errorf("no answer within %v", partTimeout)
		}
		contents = append(contents, r.content)
		c.parts = append(c.parts, c.part(s, r.content, r.err))
	}
	return contents
}

// part returns what the archive has of a part.
func (c *collector) part(s partSource, content []byte, err error) debugPart {
	if err == nil && c.redactor != nil && s.hide != nil {
		content, err = s.hide(content)
	}
	p := debugPart{Name: s.name, Bytes: len(content), content: content}
	if err != nil {
		p = debugPart{Name: s.name, Error: strings.Join(strings.Fields(err.Error()), " ")}
		if c.redactor != nil {
			p.Error = c.redactor.Error(p.Error)
		}
	}
	return p
}

// shownTexts are the texts of a status that have no names of files or nodes.
var shownTexts = []string{
	"milkweed", "go_version", "mode", "since", "tiers.name", "tiers.health", "waits.level", "waits.cause",
	"epochs.began", "epochs.opens.level", "epochs.waits.level", "epochs.waits.cause", "peers.roster.hash",
	"warnings.level", "warnings.message", "warnings.tier",
}

func (c *collector) hideStatus(document []byte) ([]byte, error) {
	return c.redactor.JSON(document, func(path, text string) string {
		switch {
		case slices.Contains(shownTexts, path):
			return text
		case strings.HasSuffix(path, "reason") || strings.HasSuffix(path, "error"):
			return c.redactor.Error(text)
		}
		if _, err := time.Parse(time.RFC3339, text); err == nil {
			return text
		}
		return c.redactor.Path(text)
	})
}

func (c *collector) hideAll(document []byte) ([]byte, error) {
	return c.redactor.JSON(document, func(_, text string) string { return c.redactor.Path(text) })
}

// hideSettings hides values that may be names, and the directories of configuration files.
func (c *collector) hideSettings(document []byte) ([]byte, error) {
	var values []config.Setting
	if err := json.Unmarshal(document, &values); err != nil {
		return nil, err
	}
	for i, s := range values {
		if !s.IsPublic() {
			values[i].Value = c.redactor.Path(s.Value)
		}
		if dir, _ := filepath.Split(s.Origin); dir != "" {
			file, line, _ := strings.Cut(s.Origin, ":")
			values[i].Origin = c.redactor.Path(file) + ":" + line
		}
	}
	return json.MarshalIndent(values, "", "  ")
}

func (c *collector) hideLog(log []byte) ([]byte, error) {
	return c.redactor.Log(log, []string{"tier", "mode", "state", "result"}), nil
}

// endOfLog returns the end of the log of a daemon with these settings.
func endOfLog(settings []config.Setting) ([]byte, error) {
	i := slices.IndexFunc(settings, func(s config.Setting) bool { return s.Key == "log.file" })
	if i < 0 || settings[i].Value == "" {
		return nil, errors.New("its file is not known: the daemon does not answer, or logs to its standard error")
	}
	f, err := os.Open(settings[i].Value)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return nil, err
	}
	log, err := io.ReadAll(io.NewSectionReader(f, max(0, info.Size()-maxLog), maxLog))
	if _, rest, ok := bytes.Cut(log, []byte("\n")); ok && info.Size() > maxLog {
		log = rest
	}
	return log, err
}

// processFacts describes the process of the daemon.
func processFacts(pid int) ([]byte, error) {
	if pid == 0 {
		return nil, errors.New("its number is not known, because the daemon does not answer")
	}
	dir := filepath.Join("/proc", strconv.Itoa(pid))
	if _, err := os.Stat(dir); err != nil {
		return nil, err
	}
	var b bytes.Buffer
	for _, name := range []string{"status", "limits", "io", "sched", "oom_score"} {
		appendFile(&b, filepath.Join(dir, name))
	}
	if open, err := os.ReadDir(filepath.Join(dir, "fd")); err == nil {
		fmt.Fprintf(&b, "open descriptors: %d\n", len(open))
	}
	threads, _ := os.ReadDir(filepath.Join(dir, "task"))
	for _, t := range threads {
		place, _ := os.ReadFile(filepath.Join(dir, "task", t.Name(), "wchan"))
		fmt.Fprintf(&b, "thread %s waits in %s\n", t.Name(), place)
	}
	return b.Bytes(), nil
}

// kernelFacts describes the machine.
func kernelFacts(context.Context) ([]byte, error) {
	var u unix.Utsname
	if err := unix.Uname(&u); err != nil {
		return nil, err
	}
	var b bytes.Buffer
	fmt.Fprintf(&b, "kernel %s %s, %d CPUs, user %d\n", unix.ByteSliceToString(u.Release[:]), unix.ByteSliceToString(u.Machine[:]), runtime.NumCPU(), os.Geteuid())
	for _, name := range []string{
		"/etc/os-release", "/proc/meminfo", "/proc/loadavg", "/proc/pressure/cpu", "/proc/pressure/io", "/proc/pressure/memory",
		"/proc/sys/fs/file-nr", "/proc/sys/vm/dirty_ratio", "/proc/sys/vm/swappiness", "/sys/module/fuse/parameters/max_user_bgreq",
		"/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/cpu.max",
	} {
		appendFile(&b, name)
	}
	waiting, _ := filepath.Glob("/sys/fs/fuse/connections/*/waiting")
	for _, name := range waiting {
		appendFile(&b, name)
	}
	return b.Bytes(), nil
}

// appendFile appends the content of a file with its name, or why there is none.
func appendFile(b *bytes.Buffer, name string) {
	content, err := os.ReadFile(name)
	if err != nil {
		fmt.Fprintf(b, "%v\n\n", err)
		return
	}
	fmt.Fprintf(b, "%s:\n%s\n\n", name, bytes.TrimSpace(content))
}

// A storage is the file system of the source, of a tier or of the mount.
type storage struct {
	Role     string `json:"role"`
	Type     string `json:"type"` // such as ext4
	ReadOnly bool   `json:"read_only"`
	Bytes    uint64 `json:"size_bytes,omitempty"`
	Free     uint64 `json:"available_bytes,omitempty"`
	Error    string `json:"error,omitempty"`
}

// storageFacts describes the file systems that a mount uses, without their names.
func storageFacts(s control.Status) ([]byte, error) {
	if s.MountPoint == "" {
		return nil, errors.New("not known, because the daemon does not answer")
	}
	table, err := mounts.Read(mounts.Self)
	if err != nil {
		return nil, err
	}
	all := []storage{storageOf(table, "source", s.Source.Path, true)}
	for _, t := range s.Tiers {
		all = append(all, storageOf(table, "tier "+t.Name, t.Path, true))
	}
	all = append(all, storageOf(table, "mount", s.MountPoint, false)) // a request to a daemon that may hang
	return json.MarshalIndent(all, "", "  ")
}

func storageOf(table mounts.Table, role, path string, sized bool) storage {
	if config.IsURL(path) {
		return storage{Role: role, Type: "bucket"}
	}
	m, ok := table.Of(path)
	if !ok {
		return storage{Role: role, Error: "it is on no file system of this mount namespace"}
	}
	all := storage{Role: role, Type: m.Type, ReadOnly: m.ReadOnly}
	if !sized {
		return all
	}
	var st unix.Statfs_t
	if err := unix.Statfs(path, &st); err != nil {
		all.Error = err.Error()
		return all
	}
	all.Bytes, all.Free = st.Blocks*uint64(st.Bsize), st.Bavail*uint64(st.Bsize)
	return all
}
