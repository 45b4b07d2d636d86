// Package page is the web page of a mount: what the tiers hold, the epochs side by side, what readers
// wait for. Every user of the machine can open it, so it shows no name of a file and no path but that
// of the mount point, and it changes nothing.
package page

import (
	"bytes"
	"context"
	"embed"
	"encoding/json"
	"fmt"
	"io/fs"
	"net/http"
	"strconv"
	"time"

	"github.com/milkweedfs/milkweed/cmd/internal/control"
	"github.com/milkweedfs/milkweed/cmd/internal/rates"
)

// assets are the files of the page. It loads nothing else.
//
//go:embed assets
var assets embed.FS

// policy allows the page its own files and data, and nothing inline. No other page may frame it.
const policy = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; " +
	"base-uri 'none'; form-action 'none'; frame-ancestors 'none'"

// Handler serves the page at /, its files, and its data at /page.json. Listen is the address of the
// server, host:port. The data are made from status and points, which is the Since of a rates.History.
//
// /page.json?after=MS has the Points after MS, which is a time in milliseconds since 1970; without it,
// all of them.
func Handler(listen string, status func(context.Context) control.Status, points func(after time.Time) []rates.Point) http.Handler {
	mux := http.NewServeMux()
	mux.Handle("GET /{$}", asset("page.html", "text/html; charset=utf-8"))
	mux.Handle("GET /page.css", ownOnly(asset("page.css", "text/css; charset=utf-8")))
	mux.Handle("GET /page.js", ownOnly(asset("page.js", "text/javascript; charset=utf-8")))
	mux.Handle("GET /page.svg", ownOnly(asset("page.svg", "image/svg+xml")))
	mux.Handle("GET /page.json", ownOnly(data(status, points)))
	return secured(readOnly(newHosts(listen).only(mux)))
}

// secured sets the headers that restrict what a browser does with any response.
func secured(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		for key, value := range map[string]string{
			"Content-Security-Policy":      policy,
			"X-Content-Type-Options":       "nosniff",
			"Referrer-Policy":              "no-referrer",
			"Cross-Origin-Resource-Policy": "same-origin",
			"Cache-Control":                "no-store", // the files too: they belong to one version of the daemon
		} {
			w.Header().Set(key, value)
		}
		h.ServeHTTP(w, r)
	})
}

// readOnly refuses methods that could change something.
func readOnly(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method != http.MethodGet && r.Method != http.MethodHead {
			w.Header().Set("Allow", "GET, HEAD")
			http.Error(w, "This address is read-only.", http.StatusMethodNotAllowed)
			return
		}
		h.ServeHTTP(w, r)
	})
}

// ownOnly refuses requests that a browser makes for another page, also for one of the same machine:
// another user may serve it. Programs other than browsers do not send the header.
func ownOnly(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.Header.Get("Sec-Fetch-Site") {
		case "", "same-origin", "none":
			h.ServeHTTP(w, r)
		default:
			http.Error(w, "Only the page at / may request this.", http.StatusForbidden)
		}
	})
}

// asset serves a file of assets.
func asset(name, contentType string) http.Handler {
	content, err := fs.ReadFile(assets, "assets/"+name)
	if err != nil {
		panic(err) // it is embedded
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", contentType)
		http.ServeContent(w, r, "", time.Time{}, bytes.NewReader(content))
	})
}

// data serves the State of the daemon.
func data(status func(context.Context) control.Status, points func(time.Time) []rates.Point) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		after, err := parseAfter(r.URL.Query().Get("after"))
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		s := status(r.Context())
		state := newState(&s, time.Now())
		state.Points = append([]rates.Point{}, points(after)...)
		w.Header().Set("Content-Type", "application/json")
		json.NewEncoder(w).Encode(state) // an error means that the client has disconnected
	})
}

// parseAfter parses the parameter "after". Points have times with a finer resolution: a Point within
// the millisecond is not after it.
func parseAfter(text string) (time.Time, error) {
	if text == "" {
		return time.Time{}, nil
	}
	ms, err := strconv.ParseInt(text, 10, 64)
	if err != nil || ms < 0 {
		return time.Time{}, fmt.Errorf("after=%.20q: want a time in milliseconds since 1970", text)
	}
	return time.UnixMilli(ms).Add(time.Millisecond - 1), nil
}
