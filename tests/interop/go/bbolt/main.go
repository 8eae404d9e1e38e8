// Makes a bbolt file from a recipe on standard input, with the real library, and prints what the library
// itself reads in it, so that another reader can be compared with it.
//
// A recipe is one JSON object: {"page_size", "map_free_list", "transactions": [[operation, …], …]}; an operation is
// {"do": "bucket" | "put" | "delete" | "drop", "path": [hex, …], "key": hex, "value": hex}. Each list is one
// transaction. With {"hold": true} the file stays open, and so locked, until standard input ends.
package main

import (
	"bufio"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"log"
	"os"

	bolt "go.etcd.io/bbolt"
)

type operation struct {
	Do    string   `json:"do"`
	Path  []string `json:"path"`
	Key   string   `json:"key"`
	Value string   `json:"value"`
}

type recipe struct {
	PageSize     int           `json:"page_size"`
	MapFreeList  bool          `json:"map_free_list"`
	Hold         bool          `json:"hold"`
	Transactions [][]operation `json:"transactions"`
}

// told is one key as the library reads it. Value is absent for a bucket.
type told struct {
	Path     []string `json:"path"`
	Key      string   `json:"key"`
	Value    *string  `json:"value"`
	Sequence uint64   `json:"sequence,omitempty"`
}

func bytesOf(text string) []byte {
	data, err := hex.DecodeString(text)
	if err != nil {
		log.Fatalf("not hex: %q", text)
	}
	return data
}

func at(tx *bolt.Tx, path []string) (*bolt.Bucket, error) {
	var found *bolt.Bucket
	for depth, name := range path {
		var err error
		if depth == 0 {
			found, err = tx.CreateBucketIfNotExists(bytesOf(name))
		} else {
			found, err = found.CreateBucketIfNotExists(bytesOf(name))
		}
		if err != nil {
			return nil, err
		}
	}
	return found, nil
}

func apply(tx *bolt.Tx, op operation) error {
	if op.Do == "drop" && len(op.Path) == 0 {
		return tx.DeleteBucket(bytesOf(op.Key))
	}
	bucket, err := at(tx, op.Path)
	if err != nil {
		return err
	}
	switch op.Do {
	case "bucket":
		return nil
	case "put":
		if _, err := bucket.NextSequence(); err != nil {
			return err
		}
		return bucket.Put(bytesOf(op.Key), bytesOf(op.Value))
	case "delete":
		return bucket.Delete(bytesOf(op.Key))
	case "drop":
		return bucket.DeleteBucket(bytesOf(op.Key))
	}
	return fmt.Errorf("no operation is called %q", op.Do)
}

func tell(out *json.Encoder, path []string, cursor *bolt.Cursor, open func([]byte) *bolt.Bucket) error {
	for key, value := cursor.First(); key != nil; key, value = cursor.Next() {
		row := told{Path: path, Key: hex.EncodeToString(key)}
		if value != nil {
			text := hex.EncodeToString(value)
			row.Value = &text
			if err := out.Encode(row); err != nil {
				return err
			}
			continue
		}
		bucket := open(key)
		row.Sequence = bucket.Sequence()
		if err := out.Encode(row); err != nil {
			return err
		}
		inner := append(append([]string{}, path...), row.Key)
		if err := tell(out, inner, bucket.Cursor(), bucket.Bucket); err != nil {
			return err
		}
	}
	return nil
}

func main() {
	if len(os.Args) != 2 {
		log.Fatal("usage: bbolt FILE < recipe")
	}
	input := json.NewDecoder(bufio.NewReader(os.Stdin))
	var made recipe
	if err := input.Decode(&made); err != nil {
		log.Fatalf("no recipe: %v", err)
	}
	options := &bolt.Options{PageSize: made.PageSize, NoSync: true}
	if made.MapFreeList {
		options.FreelistType = bolt.FreelistMapType
	}
	db, err := bolt.Open(os.Args[1], 0o600, options)
	if err != nil {
		log.Fatal(err)
	}
	defer db.Close()
	for _, operations := range made.Transactions {
		err := db.Update(func(tx *bolt.Tx) error {
			for _, op := range operations {
				if err := apply(tx, op); err != nil {
					return fmt.Errorf("%s: %w", op.Do, err)
				}
			}
			return nil
		})
		if err != nil {
			log.Fatal(err)
		}
	}
	out := bufio.NewWriter(os.Stdout)
	err = db.View(func(tx *bolt.Tx) error {
		return tell(json.NewEncoder(out), []string{}, tx.Cursor(), tx.Bucket)
	})
	if err != nil {
		log.Fatal(err)
	}
	if made.Hold {
		fmt.Fprintln(out, `{"held":true}`)
	}
	if err := out.Flush(); err != nil {
		log.Fatal(err)
	}
	if made.Hold {
		_, _ = io.Copy(io.Discard, os.Stdin)
	}
}
