package check

import (
	"errors"
	"strings"

	"github.com/dustin/go-humanize"

	"github.com/milkweedfs/milkweed/cmd/internal/exit"
	"github.com/milkweedfs/milkweed/drivers/manifest"
)

// Manifest reports on the manifest of the source, at a place, or on the error of reading it.
func Manifest(place string, m *manifest.Manifest, err error) []Finding {
	const name = "manifest"
	switch {
	case err == nil && m.Unsealed:
		return warning(name, "Compare the number with that of the dataset, or write the manifest with `milkweed manifest`.",
			"%s has %s names, and no end that shows that it is complete: milkweed manifest has not written it", place, humanize.Comma(m.Names))
	case err == nil:
		return ok(name, "%s has %s files, %s", place, humanize.Comma(m.Files), humanize.IBytes(uint64(m.Bytes)))
	}
	e, isUserError := errors.AsType[*exit.Error](err)
	if !isUserError {
		e = &exit.Error{Code: exit.Source, Err: err, Remedy: "Write it again with `milkweed manifest`."}
	}
	return problem(e.Code, name, e.Remedy, "%s", strings.TrimPrefix(e.Err.Error(), "source.manifest: "))
}
