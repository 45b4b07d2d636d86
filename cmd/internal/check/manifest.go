package check

import (
	"errors"
	"strings"

	"github.com/dustin/go-humanize"

	"github.com/milkweedfs/milkweed/cmd/internal/exit"
)

// Manifest reports on the manifest of the source, at a place, with its files and their bytes, or on the
// error of reading it.
func Manifest(place string, files, bytes int64, err error) []Finding {
	const name = "manifest"
	if err == nil {
		return ok(name, "%s has %s files, %s", place, humanize.Comma(files), humanize.IBytes(uint64(bytes)))
	}
	e, isUserError := errors.AsType[*exit.Error](err)
	if !isUserError {
		e = &exit.Error{Code: exit.Source, Err: err, Remedy: "Write it again with `milkweed manifest`."}
	}
	return problem(e.Code, name, e.Remedy, "%s", strings.TrimPrefix(e.Err.Error(), "source.manifest: "))
}
