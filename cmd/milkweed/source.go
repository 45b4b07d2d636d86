package main

import (
	"context"
	"fmt"
	"io"
	"log/slog"

	"github.com/milkweedfs/milkweed/cmd/internal/config"
	"github.com/milkweedfs/milkweed/cmd/internal/exit"
	"github.com/milkweedfs/milkweed/drivers"
	"github.com/milkweedfs/milkweed/drivers/blob"
	"github.com/milkweedfs/milkweed/drivers/posix"
)

// A source is an open source. Who opened it closes it.
type source interface {
	drivers.Driver
	drivers.Sampler
	io.Closer
}

// openSource opens a source. This is where its driver is chosen.
func openSource(ctx context.Context, c config.Source, log *slog.Logger) (s source, err error) {
	switch {
	case c.URL != "":
		s, err = openBucket(ctx, c.URL, log)
	default:
		s, err = posix.OpenDir(c.Path)
	}
	if err != nil {
		return nil, err
	}
	return s, nil
}

func openBucket(ctx context.Context, url string, log *slog.Logger) (*blob.Bucket, error) {
	l, err := blob.Parse(url)
	if err != nil {
		return nil, err
	}
	return blob.Open(ctx, l, log)
}

// parseURL has the driver read the URL of a source, if it has one, before it is
// shown to anybody.
func parseURL(c *config.Config) error {
	if c.Source.URL == "" {
		return nil
	}
	if _, err := blob.Parse(c.Source.URL); err != nil {
		return &exit.Error{
			Code:   exit.Usage,
			Err:    fmt.Errorf("%s: source.url: %w", c.Origin("source.url"), err),
			Remedy: "A bucket has a URL, such as s3://bucket/prefix?region=eu-west-1. `milkweed mount --help` lists the options.",
		}
	}
	return nil
}
