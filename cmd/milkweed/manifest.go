package main

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"

	"github.com/milkweedfs/milkweed/cmd/internal/apart"
	"github.com/milkweedfs/milkweed/cmd/internal/check"
	"github.com/milkweedfs/milkweed/cmd/internal/config"
	"github.com/milkweedfs/milkweed/cmd/internal/exit"
	"github.com/milkweedfs/milkweed/cmd/internal/paths"
	"github.com/milkweedfs/milkweed/drivers/manifest"
)

// manifestFlags are the flags of the command manifest.
type manifestFlags struct {
	output, omit string
	asJSON       bool
}

func newManifest() *cobra.Command {
	var flags manifestFlags
	c := &cobra.Command{
		Use:   "manifest [-o FILE] SOURCE",
		Short: "Write the names, sizes and hashes of a dataset to a manifest",
		Long: `Manifest reads all files of SOURCE, a directory or the URL of a bucket, and
writes a manifest: the name, type, permissions and modification time of each,
the size and the SHA-256 of each file, and the target of each symbolic link. It
shows its progress.

The format is that of mtree(5), with the full path on each line; mtree(8) and
bsdtar(1) read and write it as well. Two manifests of the same dataset are
equal, byte by byte. The last line is a comment with the number of entries and
the SHA-256 of all lines before it: a manifest that was cut or edited is refused
wherever it is used. One of another program has no such line: mount and check
then warn, and print the number of its names.

The manifest goes to standard output or, with -o, to FILE, which is replaced
when the manifest is complete. A FILE inside SOURCE is left out of the manifest.

milkweed check --manifest compares a source, or the tiers, with a manifest. A
mount with --manifest takes the names from it, and keeps only copies that have
the hash in it.

Manifest exits with 8, and writes no FILE, if a file or a directory could not be
read, or changed while it was read. With --json it prints the result as one
object: file, files, bytes, and sha256, which is that of the manifest itself.`,
		Example: `  milkweed manifest -o imagenet.mtree /lustre/imagenet
  milkweed manifest -o /lustre/sets/v3/manifest.mtree /lustre/sets/v3
  milkweed manifest --omit manifest.mtree 's3://sets/v3' > manifest.mtree`,
		Args: usage(cobra.ExactArgs(1)),
		RunE: inChild(func(c *cobra.Command, args []string) error {
			if flags.asJSON && flags.output == "" {
				return usageError(c, errors.New("--json needs --output: otherwise the manifest itself goes to standard output"))
			}
			return flags.run(c, args[0])
		}),
	}
	c.Flags().StringVarP(&flags.output, "output", "o", "", "write the manifest to `FILE`")
	c.Flags().StringVar(&flags.omit, "omit", "", "leave out the file `NAME` of the dataset, such as an earlier manifest in a bucket")
	c.Flags().BoolVar(&flags.asJSON, "json", false, "print the result as JSON")
	return c
}

// A manifestResult is the result of the command manifest.
type manifestResult struct {
	File   string `json:"file"`
	Files  int64  `json:"files"`
	Bytes  int64  `json:"bytes"`
	SHA256 string `json:"sha256"`
}

func (flags manifestFlags) run(c *cobra.Command, source string) (err error) {
	cfg, s, err := openNamed(c.Context(), source)
	if err != nil {
		return err
	}
	defer s.Close()
	out := c.OutOrStdout()
	if flags.output != "" {
		var f *replacement
		if f, err = replace(flags.output); err != nil {
			return err
		}
		defer func() { err = f.end(err) }()
		out = f
	}
	omitted := flags.omitted(cfg.Source)
	apart.Opened()
	sum := sha256.New()
	w := manifest.NewWriter(io.MultiWriter(out, sum))
	result := manifestResult{File: flags.output}
	d := newDisplay(c.ErrOrStderr(), flags.asJSON)
	var failed int64
	h := &hasher{driver: s, wants: func(e manifest.Entry) bool { return !omitted(e.Name) }}
	h.onFound = func(e manifest.Entry, err error) error {
		switch {
		case omitted(e.Name):
			return nil
		case err != nil:
			failed++
			fmt.Fprintf(c.ErrOrStderr(), "%s: %v\n", text(e.Name), err)
			return nil
		case e.IsRegular():
			result.Files++
			result.Bytes += e.Size
		}
		d.show(step{text: files(result.Files), bytes: h.read.Load(), state: result})
		return w.Write(e)
	}
	err = h.run(c.Context())
	d.end()
	if err == nil {
		err = w.Close()
	}
	switch {
	case err != nil:
		return err
	case failed > 0:
		return &exit.Error{
			Code:   exit.Incomplete,
			Err:    fmt.Errorf("%s could not be read: the manifest is not complete", plural(failed, "name", "names")),
			Remedy: "Run it again as a user who may read all files, while nothing changes them.",
		}
	}
	result.SHA256 = fmt.Sprintf("%x", sum.Sum(nil))
	switch {
	case flags.asJSON:
		return printJSON(c.OutOrStdout(), result)
	case flags.output != "":
		fmt.Fprintf(c.OutOrStdout(), "%s (%s) in %s, whose SHA-256 is %s\n", files(result.Files), size(result.Bytes), text(flags.output), result.SHA256)
	}
	return nil
}

// omitted returns a function that reports whether a name is left out: that of the output, if it is in the
// source, that with which it is written, and that of --omit.
func (flags manifestFlags) omitted(s config.Source) func(name string) bool {
	output := ""
	if flags.output != "" && s.Path != "" {
		shown, err := filepath.EvalSymlinks(s.Path)
		dir, dirErr := filepath.EvalSymlinks(filepath.Dir(flags.output))
		if err == nil && dirErr == nil && paths.Within(dir, shown) {
			output, _ = filepath.Rel(shown, filepath.Join(dir, filepath.Base(flags.output)))
		}
	}
	return func(name string) bool {
		return name == flags.omit || output != "" && (name == output || name == output+partial)
	}
}

// openNamed opens the source that an argument names, without a configuration file. If it is a link to a
// generation, it opens that.
func openNamed(ctx context.Context, argument string) (*config.Config, source, error) {
	cfg := config.Default()
	key := "source.path"
	if config.IsURL(argument) {
		key = "source.url"
	}
	if err := cfg.Set(key, argument, "argument SOURCE"); err != nil {
		return nil, nil, err
	}
	if err := parseURL(&cfg); err != nil {
		return nil, nil, err
	}
	s, _, err := openShown(ctx, &cfg, nil)
	if err != nil {
		return nil, nil, check.SourceError(cfg.Source, err)
	}
	return &cfg, s, nil
}

// partial is the end of the name of a file that is not complete.
const partial = ".milkweed-partial"

// A replacement is a file that gets its name when it is complete.
type replacement struct {
	*os.File
	path string
}

// replace creates a replacement for a file. The caller calls end.
func replace(path string) (*replacement, error) {
	f, err := os.OpenFile(path+partial, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o644)
	if err != nil {
		return nil, &exit.Error{Code: exit.Usage, Err: fmt.Errorf("--output: %w", err), Remedy: "Name a file in a directory that exists and may be written."}
	}
	return &replacement{f, path}, nil
}

// end puts the file in its place, unless err is not nil: then it removes it and returns err.
func (r *replacement) end(err error) error {
	if err == nil {
		err = r.Sync()
	}
	err = errors.Join(err, r.Close())
	if err == nil {
		err = os.Rename(r.Name(), r.path)
	}
	if err != nil {
		os.Remove(r.Name())
	}
	return err
}
